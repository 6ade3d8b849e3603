"""``testbed top``: nodes, cards and containers as they are now."""

from testbed.lab.top.gather import gather
from testbed.lab.top.model import View, view
from testbed.lab.top.show import frame, text

__all__ = ["View", "frame", "gather", "text", "view"]
