"""Whether this extender may promise: it leads exactly while its own scheduler does.

Scheduler and extender share a pod, and the schedulers elect one of them by a Lease. The
extender beside the holder serves, the others follow the cluster and refuse. It stops
before its lease is over, by the time that a Binding may be under way, so that no two
ever promise the same card; and whoever begins reads the cluster anew first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from testbed.stack.extender.api import CALL_S

#: Used where a Lease does not say how long it lasts.
_USUAL_S = 15.0


@dataclass(slots=True)
class Leadership:
    """What is known of the Lease.

    Attributes:
        identity: This host's name; the holder is called ``<host>_<uuid>``.
        margin_s: How long before its end the lease is not trusted any more.
    """

    identity: str
    margin_s: float = CALL_S
    holder: str = ""
    _renewed: str = ""
    _seen: float = 0.0
    _lasts_s: float = _USUAL_S

    def observe(self, lease: Mapping[str, Any] | None, asked: float) -> None:
        """Take the Lease as it was read.

        Args:
            lease: The object; None if there is none.
            asked: When the read was *begun*, by our clock: clocks of hosts differ, so a
                renewal counts from when it was first seen.
        """
        spec = (lease or {}).get("spec") or {}
        holder = str(spec.get("holderIdentity") or "")
        renewed = str(spec.get("renewTime") or "")
        if holder != self.holder or renewed != self._renewed:
            self.holder, self._renewed, self._seen = holder, renewed, asked
        self._lasts_s = float(spec.get("leaseDurationSeconds") or _USUAL_S)

    def leads(self, now: float) -> bool:
        """Tell whether this extender's scheduler holds the lease, with a margin."""
        if self.holder.rpartition("_")[0] != self.identity or not self._renewed:
            return False
        return now - self._seen < self._lasts_s - min(self.margin_s, self._lasts_s / 2)
