"""Which cards are fit for new pods: a value in, a value out; no clock, no driver.

A card is unhealthy while the driver gives no answer for it, and after an XID that the
policy takes for a defect. The latter outlasts an answering driver: most such errors
need the card to be reset, and until then new pods would meet them again. Recovery is
seen, or told: the card was away and answers again (a reset, or its machine's), the
driver asked for an action and asks no more, or an operator says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace

from testbed.stack.devices.xid import Action, XidPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """An XID that made a card unhealthy.

    Attributes:
        was_away: The driver gave no answer for the card since.
        action_asked: The driver asked for a recovery action since.
    """

    xid: int
    was_away: bool = False
    action_asked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The state of a node's cards, by uuid.

    Attributes:
        silent: Cards for which the driver gives no answer, with its words.
        faults: XIDs from which a card has not recovered.
    """

    silent: Mapping[str, str] = field(default_factory=dict)
    faults: Mapping[str, Fault] = field(default_factory=dict)

    @property
    def unhealthy(self) -> dict[str, str]:
        """The cards that take no new pods, with the reason."""
        found = {uuid: f"XID {fault.xid}" for uuid, fault in self.faults.items()}
        for uuid, words in self.silent.items():
            found[uuid] = f"{found[uuid]}, {words}" if uuid in found else words
        return found


def after_xid(health: Health, uuid: str, xid: int, policy: XidPolicy) -> tuple[Health, Action]:
    """Return the state after an XID, and what the policy makes of it."""
    action = policy.action(xid)
    if action != "unhealthy":
        return health, action
    # A further error: recovery from the first does not count for it.
    return replace(health, faults={**health.faults, uuid: Fault(xid=xid)}), action


def after_look(
    health: Health,
    silent: Mapping[str, str],
    recovery_actions: Mapping[str, int],
    cleared: Set[str] = frozenset(),
) -> tuple[Health, dict[str, str]]:
    """Return the state after a look at the driver, and which cards recovered, and how.

    Args:
        health: Before.
        silent: Cards for which the driver gives no answer, with its words.
        recovery_actions: What the driver asks to be done with a card, 0 for nothing;
            without the cards for which it does not tell.
        cleared: Cards that an operator says are well.
    """
    faults: dict[str, Fault] = {}
    recovered = {
        uuid: "the driver answers again"
        for uuid in health.silent
        if uuid not in silent and uuid not in health.faults
    }
    for uuid, fault in health.faults.items():
        asked = recovery_actions.get(uuid)
        seen = replace(
            fault,
            was_away=fault.was_away or uuid in silent,
            action_asked=fault.action_asked or bool(asked),
        )
        if uuid in silent:
            faults[uuid] = seen
        elif uuid in cleared:
            recovered[uuid] = "an operator says so"
        elif seen.was_away:
            recovered[uuid] = "it was away and answers again"
        elif seen.action_asked and asked == 0:
            recovered[uuid] = "the driver asks for no action any more"
        else:
            faults[uuid] = seen
    return Health(silent=dict(silent), faults=faults), recovered


def named(text: str, cards: Iterable[str]) -> frozenset[str]:
    """Return the cards that an operator's annotation names: uuids, or ``all``."""
    words = {word.strip() for word in text.split(",")}
    return frozenset(card for card in cards if "all" in words or card in words)
