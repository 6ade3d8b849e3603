"""What an XID error means for a card: the table, and who may change it. Pure.

XIDs are the driver's error numbers (NVIDIA, "XID Errors" in the GPU deployment
documentation). Most name a defect; some only tell that an application went wrong, and a
card is no worse for these.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from testbed.errors import InputError

#: ``ignore``: the application's fault. ``contained``: the card's, but only the process
#: that met it is lost. ``unhealthy``: no new pods until the card has recovered.
Action = Literal["ignore", "contained", "unhealthy"]

#: Graphics exception, page fault, stopped processing, preemptive clean-up, video
#: processor exception, context-switch time-out: as HAMi's and NVIDIA's plugins ignore.
APPLICATION_XIDS = (13, 31, 43, 45, 68, 109)
#: Contained memory error (k8s-device-plugin #1974): neighbours are not touched.
CONTAINED_XIDS = (94,)

ENV_DISABLE = "DP_DISABLE_HEALTHCHECKS"
ENV_ENABLE = "DP_ENABLE_HEALTHCHECKS"
_ALL = frozenset({"all", "xids"})


@dataclass(frozen=True, slots=True, kw_only=True)
class XidPolicy:
    """What follows from each XID; ``default`` from those that are not in the table."""

    default: Action = "unhealthy"
    table: Mapping[int, Action] = field(default_factory=dict)

    def action(self, xid: int) -> Action:
        return self.table.get(xid, self.default)


def xid_policy(
    table: Mapping[int, Action], default: Action, environ: Mapping[str, str]
) -> XidPolicy:
    """Return the policy in force: our table, the configuration's, the environment's.

    The environment is NVIDIA's plugin's: ``DP_DISABLE_HEALTHCHECKS`` and
    ``DP_ENABLE_HEALTHCHECKS`` are ``all`` (or ``xids``) or lists of numbers, and what is
    enabled counts, also where it is disabled, too.

    Raises:
        InputError: a variable holds something else.
    """
    ours: dict[int, Action] = dict.fromkeys(APPLICATION_XIDS, "ignore")
    ours |= dict.fromkeys(CONTAINED_XIDS, "contained")
    found: dict[int, Action] = {**ours, **table}
    steps: tuple[tuple[str, Action], ...] = ((ENV_DISABLE, "ignore"), (ENV_ENABLE, "unhealthy"))
    for name, action in steps:
        every, numbers = _listed(name, environ.get(name, ""))
        if every:
            found, default = {}, action
        found |= dict.fromkeys(numbers, action)
    return XidPolicy(default=default, table=found)


def _listed(name: str, text: str) -> tuple[bool, tuple[int, ...]]:
    words = [word for word in re.split(r"[,\s]+", text.strip().lower()) if word]
    numbers = [word for word in words if word not in _ALL]
    if wrong := [word for word in numbers if not word.isdecimal()]:
        raise InputError(
            f"{name}={text!r} cannot be used",
            why=f"{wrong[0]!r} is neither a number nor one of {', '.join(sorted(_ALL))}",
            hint=f"write {name}=all or a list of XIDs such as 48,79",
        )
    return len(numbers) < len(words), tuple(int(word) for word in numbers)
