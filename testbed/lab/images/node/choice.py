"""Which image nodes are made from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Whether kind's own image is used, and one line for people that says why."""

    official: bool
    why: str


def choose(
    *,
    offline: str,
    made: bool,
    present: Callable[[], bool],
    pullable: Callable[[], bool],
    official: str,
) -> Choice:
    """Choose kind's own image where the engine has or can pull it, else one made here.

    Args:
        offline: Why the engine has no network; empty if it may have one.
        made: Whether the image that is made here is in the cache.
        present: Whether the engine has kind's image.
        pullable: Whether a registry says that it has kind's image.
        official: The name of kind's image.
    """
    own = "the node image of this testbed" + ("" if made else ", to be made first")
    if offline:
        return Choice(official=False, why=f"{own}: {offline}")
    if present():
        return Choice(official=True, why=f"{official}: the engine has it")
    if pullable():
        return Choice(official=True, why=f"{official}: it can be pulled")
    return Choice(official=False, why=f"{own}: {official} cannot be pulled here")
