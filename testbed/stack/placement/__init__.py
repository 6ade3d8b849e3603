"""Placement: what pods ask for, where it fits, and who was promised what.

``request`` and ``effective`` are plain Python and serve the webhook too; ``ledger``
and what builds on it need numpy, so nothing of them is imported here.
"""

from testbed.stack.placement.effective import Charge, Kind, fold
from testbed.stack.placement.request import PodRequest, container_kinds, pod_request

__all__ = ["Charge", "Kind", "PodRequest", "container_kinds", "fold", "pod_request"]
