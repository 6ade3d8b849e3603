"""Why a pod waits, with numbers; what a running one asked, gets and waits for.

``gather`` reads the cluster, ``explain`` is pure, ``text`` is what a terminal shows.
"""

from testbed.lab.explain.answer import explain
from testbed.lab.explain.gather import gather
from testbed.lab.explain.model import Explanation, Facts
from testbed.lab.explain.text import text

__all__ = ["Explanation", "Facts", "explain", "gather", "text"]
