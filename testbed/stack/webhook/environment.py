"""The variables of a container: kubelet puts a pod's own after the plugin's, so they win."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from testbed.errors import InputError
from testbed.stack import names
from testbed.stack.config import DeviceConfig

_NUMBERED = re.compile(rf"({'|'.join(names.ENV_LIMITS)})(_\d+)?")
_TAKEN = frozenset({*names.ENV_LIBRARY, names.ENV_VISIBLE})
#: Policies that a pod may choose for itself: neither lifts a limit.
_HARMLESS = ("force", "default")


def hide_cards(container: dict[str, Any]) -> None:
    """See that a container without a share is shown no card, whatever its image says."""
    set_variable(container, names.ENV_VISIBLE, "none")


def take_away(
    container: dict[str, Any], ours: Mapping[str, str], config: DeviceConfig
) -> list[str]:
    """Take away the variables that tell library and runtime their limits.

    The policy for compute stays where it is ``force`` or ``default``, as HAMi's users
    set it, unless the administrator has set one.

    Args:
        container: Changed in place.
        ours: What admission itself sets: of these, what is set so already stays.
        config: The device configuration.

    Returns:
        The names of those that were there.
    """
    env = _env(container)
    taken = [item for item in env if _to_take(item, ours, config)]
    if taken:
        container["env"] = [item for item in env if not _to_take(item, ours, config)]
    return list(dict.fromkeys(item["name"] for item in taken))


def _to_take(item: object, ours: Mapping[str, str], config: DeviceConfig) -> bool:
    name = item.get("name") if isinstance(item, dict) else None
    if not isinstance(item, dict) or not isinstance(name, str):
        return False
    if name not in _TAKEN and not _NUMBERED.fullmatch(name):
        return False
    if item == {"name": name, "value": ours.get(name)}:
        return False
    policy = name == names.ENV_CORE_POLICY and config.gpuCorePolicy == "default"
    return not (policy and str(item.get("value") or "").lower() in _HARMLESS)


def set_variable(container: dict[str, Any], name: str, value: str) -> None:
    """Set a variable, once, in place of whatever else has its name.

    Raises:
        InputError: the container's variables are no list.
    """
    wanted = {"name": name, "value": value}
    env = _env(container)
    same = [item for item in env if isinstance(item, dict) and item.get("name") == name]
    if same == [wanted]:
        return
    kept = [item for item in env if not (isinstance(item, dict) and item.get("name") == name)]
    container["env"] = [*kept, wanted]


def _env(container: dict[str, Any]) -> list[Any]:
    env = container.get("env") or []
    if not isinstance(env, list):
        raise InputError(f"container {str(container.get('name', ''))!r}: env is not a list")
    return env
