"""Manifests of a test's pods, from keywords or from what the test wrote itself (pure)."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from testbed.errors import InputError
from testbed.stack import names
from testbed.units import MIB, quantity

#: A process's argument may have 128 KiB (MAX_ARG_STRLEN of Linux).
SCRIPT_BYTES = 120_000
MANAGED_BY = {"app.kubernetes.io/managed-by": "vgpu-testbed-pytest"}
POLICIES = ("force", "default", "disable")
PLACES = ("binpack", "spread")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What ``submit`` was asked for by keywords.

    Attributes:
        image: The container's; with a script the testbed's PyTorch image by default.
        script: Python source, or a file of it.
        command: What runs instead of a script, or instead of the image's own program.
        gpus: Cards.
        gpumem: Memory of each: MiB, or a quantity such as ``"20Gi"``.
        gpumem_percentage: Percent of each card's memory, instead.
        gpucores: Percent of each card's compute.
        priority: 0 (first) or 1.
        policy: ``force`` holds a pod to its share of compute also when it is alone.
        place: ``binpack`` (share a card) or ``spread``.
        card: Uuid of the card that it shall have.
        node: Name of the node that it shall be on.
    """

    name: str = ""
    image: str = ""
    script: str | Path | None = None
    command: Sequence[str] | None = None
    gpus: int = 1
    gpumem: int | str | None = None
    gpumem_percentage: int | None = None
    gpucores: int | None = None
    priority: int | None = None
    policy: str = ""
    place: str = ""
    card: str = ""
    node: str = ""
    env: Mapping[str, str] | None = None
    annotations: Mapping[str, str] | None = None
    labels: Mapping[str, str] | None = None


def mib(value: int | str) -> int:
    """Return an amount of memory in MiB: a number is MiB, ``"20Gi"`` is bytes.

    Raises:
        InputError: neither, or not in whole MiB.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    text = str(value).strip()
    if text.isdecimal() and int(text):
        return int(text)
    try:
        found = quantity(text)
    except InputError as error:
        raise InputError(
            f"gpumem={value!r} is no amount of memory", hint='write MiB, or "20Gi"'
        ) from error
    if not text.endswith("i") or found <= 0 or found % MIB:
        raise InputError(
            f"gpumem={value!r} is not in whole MiB", hint=f'write {int(found // MIB)}, or "20Gi"'
        )
    return int(found // MIB)


def from_wish(wish: Wish, namespace: str, *, pytorch_image: str, number: int = 1) -> dict[str, Any]:
    """Return the pod of some keywords.

    Args:
        wish: The keywords.
        namespace: Where it goes.
        pytorch_image: What a script runs in where no image is named.
        number: Part of the name where none is given.

    Raises:
        InputError: keywords that say nothing to run, or that contradict each other.
    """
    if wish.script is not None and wish.command is not None:
        raise InputError("submit() takes script or command, not both")
    if wish.script is None and not wish.image and wish.command is None:
        raise InputError(
            "submit() is told nothing to run",
            hint='give a manifest, script="…" or image="…"',
        )
    container: dict[str, Any] = {
        "name": "main",
        "image": wish.image or pytorch_image,
        "imagePullPolicy": "IfNotPresent",
        "resources": {"limits": limits(wish)},
    }
    if wish.script is not None:
        container["command"] = ["python3", "-u", "-c", source(wish.script)]
    elif wish.command is not None:
        if isinstance(wish.command, str):
            raise InputError(
                f"command={wish.command!r} is one text", hint='write ["sh", "-c", "…"]'
            )
        container["command"] = [str(word) for word in wish.command]
    env = {name: str(value) for name, value in (wish.env or {}).items()}
    if wish.policy:
        env[names.ENV_CORE_POLICY] = _one_of("policy", wish.policy, POLICIES)
    if env:
        container["env"] = [{"name": name, "value": value} for name, value in env.items()]
    notes = dict(wish.annotations or {})
    if wish.place:
        notes[names.CARD_POLICY] = _one_of("place", wish.place, PLACES)
    if wish.card:
        notes[names.USE_UUID] = wish.card
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "containers": [container],
    }
    if wish.node:
        spec["nodeSelector"] = {"kubernetes.io/hostname": wish.node}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": wish.name or f"pod-{number}",
            "namespace": namespace,
            "labels": {**MANAGED_BY, **(wish.labels or {})},
            "annotations": notes,
        },
        "spec": spec,
    }


def limits(wish: Wish) -> dict[str, str]:
    """Return the resources that a container asks for.

    Raises:
        InputError: amounts that cannot be, or that contradict each other.
    """
    if wish.gpumem is not None and wish.gpumem_percentage is not None:
        raise InputError("submit() takes gpumem or gpumem_percentage, not both")
    if wish.gpus == 0:
        return {}
    found = {names.RESOURCE_COUNT: str(_between("gpus", wish.gpus, 1, 16))}
    if wish.gpumem is not None:
        found[names.RESOURCE_MEMORY] = str(mib(wish.gpumem))
    if wish.gpumem_percentage is not None:
        pct = _between("gpumem_percentage", wish.gpumem_percentage, 1, 100)
        found[names.RESOURCE_MEMORY_PERCENTAGE] = str(pct)
    if wish.gpucores is not None:
        found[names.RESOURCE_CORES] = str(_between("gpucores", wish.gpucores, 0, 100))
    if wish.priority is not None:
        found[names.RESOURCE_PRIORITY] = str(_between("priority", wish.priority, 0, 1))
    return found


def source(script: str | Path) -> str:
    """Return a script's text.

    Raises:
        InputError: a file that cannot be read, or more than a command line can hold.
    """
    if isinstance(script, Path):
        try:
            script = script.read_text()
        except OSError as error:
            raise InputError(f"script {script} cannot be read", why=str(error)) from error
    if len(script.encode()) > SCRIPT_BYTES:
        raise InputError(
            f"the script has {len(script.encode()):,} bytes",
            why=f"it is handed over on a command line, which holds {SCRIPT_BYTES:,}",
            hint="put it into a ConfigMap and submit a manifest that mounts it",
        )
    return script


def from_manifest(
    given: Mapping[str, Any] | str | Path, namespace: str, number: int = 1
) -> dict[str, Any]:
    """Return a pod that the test wrote itself, in a namespace of the test's.

    Args:
        given: The object, or a YAML file of one pod.
        namespace: Where it goes if it does not say.
        number: Part of the name where it has none.

    Raises:
        InputError: it is no pod.
    """
    if isinstance(given, str | Path):
        try:
            loaded = yaml.safe_load(Path(given).read_text())
        except (OSError, yaml.YAMLError) as error:
            raise InputError(f"the manifest {given} cannot be read", why=str(error)) from error
    else:
        loaded = copy.deepcopy(dict(given))
    kind = loaded.get("kind") if isinstance(loaded, dict) else None
    if kind != "Pod" or not isinstance(loaded.get("spec"), dict):
        raise InputError(
            "submit() takes a pod",
            why=f"this is {'a ' + str(kind) if kind else 'none'}",
            hint="apply other objects with cluster.kubectl('apply', '-f', '-', stdin=…)",
        )
    loaded.setdefault("apiVersion", "v1")
    meta = loaded.setdefault("metadata", {})
    meta.setdefault("namespace", namespace)
    if not meta.get("name"):
        meta["name"] = f"{meta.pop('generateName', 'pod-')}{number}"
    return dict(loaded)


def namespace_name(test: str, salt: str) -> str:
    """Return a namespace's name that says whose it is: of ``test_caps[a]`` ``test-caps-a-…``."""
    words = re.sub(r"[^a-z0-9]+", "-", test.lower()).strip("-")[:40].strip("-")
    return f"{words or 'test'}-{salt}"


def _between(what: str, value: int, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InputError(f"{what}={value!r}: a number from {low} to {high} is wanted")
    return value


def _one_of(what: str, value: str, known: Sequence[str]) -> str:
    if value not in known:
        raise InputError(f"{what}={value!r} is unknown", hint=f"known are {', '.join(known)}")
    return value
