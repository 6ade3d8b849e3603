"""What real cards in a kind cluster need of this machine, each with the command that helps.

``look`` gathers, ``findings`` judges; only what the chosen way of giving cards to nodes
needs can be a fault, the rest is told.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from testbed.errors import InputError
from testbed.lab.cluster.kind import gpu, gpu_cards, gpu_host, toolkit
from testbed.lab.cluster.kind.toolkit import EngineFacts
from testbed.lab.doctor import Finding

_INSTALL = (
    "sudo apt-get install nvidia-container-toolkit-base   (NVIDIA's package repository:"
    " https://nvidia.github.io/libnvidia-container)"
)
_ACCEPT = (
    "sudo nvidia-ctk config --set accept-nvidia-visible-devices-as-volume-mounts=true --in-place"
)
_RUNTIME = (
    "sudo nvidia-ctk runtime configure --runtime=docker --set-as-default --cdi.enabled"
    " && sudo systemctl restart docker"
)
_CHAR_LINKS = "sudo nvidia-ctk system create-dev-char-symlinks --create-all"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """What was found, and what could not be read and why.

    Attributes:
        errors: What was looked for (``cards``, ``toolkit``, ``parts``) → why it failed.
        uvm: Whether ``/dev/nvidia-uvm`` is there: a node sees what is there when it starts.
        char_links: Whether ``/dev/char`` names the cards' device nodes.
        params: ``/proc/driver/nvidia/params``; empty where there is none.
    """

    host: gpu.GpuHost
    errors: dict[str, InputError]
    engine: EngineFacts | None = None
    uvm: bool = True
    char_links: bool = True
    params: str = ""


def look(engine: EngineFacts | None) -> GpuFacts:
    """Look at driver, toolkit and device nodes; change nothing."""
    errors: dict[str, InputError] = {}
    cards: tuple[gpu_cards.RealCard, ...] = ()
    kit, parts = None, None
    try:
        cards = gpu_host.cards()
    except InputError as error:
        errors["cards"] = error
    try:
        kit = gpu_host.find_toolkit()
    except InputError as error:
        errors["toolkit"] = error
    if cards:
        try:
            parts = gpu_host.driver_parts(kit)
        except InputError as error:
            errors["parts"] = error
    return GpuFacts(
        host=gpu.GpuHost(cards=cards, driver=gpu_host.driver(), toolkit=kit, parts=parts),
        errors=errors,
        engine=engine,
        uvm=Path("/dev/nvidia-uvm").exists(),
        char_links=any(Path("/dev/char").glob("195:*")),
        params=_text(Path("/proc/driver/nvidia/params")),
    )


def findings(facts: GpuFacts) -> tuple[Finding, ...]:
    """Return what is there and what is lacking, in the order in which it is mended."""
    way = _way(facts)
    found = [_driver(facts), *_mig(facts), _toolkit(facts), _passing(facts, way)]
    if facts.host.cards:
        found.append(_uvm(facts))
    if facts.host.toolkit is not None:
        found += [_accept(facts, way), _mode(facts, way), _runtime(facts, way), _cdi(facts)]
    if facts.host.cards:
        found += [_masking(facts), _links(facts)]
    return tuple(found)


def _way(facts: GpuFacts) -> gpu.Way | None:
    try:
        return gpu.choose_way(facts.host)
    except InputError:
        return None


def _driver(facts: GpuFacts) -> Finding:
    if error := facts.errors.get("cards"):
        return Finding(name="NVIDIA driver", ok=False, detail=_why(error), hint=error.hint)
    host = facts.host
    cards = ", ".join(f"{card.index}: {card.name}" for card in host.cards)
    return Finding(name="NVIDIA driver", ok=True, detail=f"{host.driver or 'answers'}; {cards}")


def _mig(facts: GpuFacts) -> list[Finding]:
    cards = [card for card in facts.host.cards if card.mig]
    if not cards:
        return []
    empty = [card for card in cards if not card.devices]
    detail = ", ".join(f"card {card.index}: {len(card.devices)} MIG devices" for card in cards)
    hint = " && ".join(f"sudo nvidia-smi mig -i {card.index} -cgi 0 -C" for card in empty)
    return [Finding(name="MIG devices", ok=not empty, detail=detail, hint=hint)]


def _toolkit(facts: GpuFacts) -> Finding:
    if error := facts.errors.get("toolkit"):
        return Finding(name="container toolkit", ok=False, detail=_why(error), hint=error.hint)
    kit = facts.host.toolkit
    if kit is None:
        return Finding(
            name="container toolkit", ok=False, detail="no nvidia-ctk in PATH", hint=_INSTALL
        )
    hook = any(path.endswith("nvidia-cdi-hook") for path in kit.programs.values())
    # Specifications name it from 1.17 on: without it no container of a card starts.
    ok = hook or kit.version < (1, 17, 0)
    detail = _version(kit.version) + ("" if ok else "; its nvidia-cdi-hook is missing")
    return Finding(name="container toolkit", ok=ok, detail=detail, hint="" if ok else _INSTALL)


def _passing(facts: GpuFacts, way: gpu.Way | None) -> Finding:
    """How nodes get the driver's files; the findings below depend on it."""
    name = "cards into nodes"
    if error := facts.errors.get("parts"):
        return Finding(name=name, ok=False, detail=_why(error), hint=error.hint)
    if way == "files":
        detail = "as mounts of the driver's files, by nvidia-ctk cdi generate"
        return Finding(name=name, ok=True, detail=detail)
    if way == "requests":
        return Finding(name=name, ok=True, detail="by the toolkit, asked by mounts of /dev/null")
    if not facts.host.cards:
        return Finding(name=name, ok=False, detail="there is no card", hint="see above")
    hint = _INSTALL if facts.host.toolkit is None else f"{_INSTALL}; or: {_ACCEPT}"
    return Finding(name=name, ok=False, detail="neither way is open", hint=hint)


def _uvm(facts: GpuFacts) -> Finding:
    return Finding(
        name="/dev/nvidia-uvm",
        ok=facts.uvm,
        detail="there" if facts.uvm else "missing: CUDA cannot start in nodes made now",
        hint="" if facts.uvm else "sudo nvidia-modprobe -u -c=0",
    )


def _accept(facts: GpuFacts, way: gpu.Way | None) -> Finding:
    kit = facts.host.toolkit
    accepts = kit is not None and kit.config.accept_volume_mounts
    ok = accepts or way == "files"
    detail = "true" if accepts else "false" + (", and not needed" if ok else "")
    return Finding(
        name="accept-nvidia-visible-devices-as-volume-mounts",
        ok=ok,
        detail=detail,
        hint="" if ok else _ACCEPT,
    )


def _mode(facts: GpuFacts, way: gpu.Way | None) -> Finding:
    kit = facts.host.toolkit
    assert kit is not None
    written = f" (written: {kit.config.mode})" if kit.config.mode != kit.mode else ""
    detail = kit.mode + written
    if way == "requests" and kit.mode == "cdi" and not kit.listed:
        return Finding(
            name="toolkit's mode",
            ok=False,
            detail=detail + ", and nvidia-ctk cdi list names no device",
            hint="sudo nvidia-ctk cdi generate --device-name-strategy=uuid"
            " --output=/etc/cdi/nvidia.yaml",
        )
    return Finding(name="toolkit's mode", ok=True, detail=detail)


def _runtime(facts: GpuFacts, way: gpu.Way | None) -> Finding:
    engine = facts.engine
    if engine is None:
        ok = way != "requests"
        return Finding(
            name="engine's default runtime",
            ok=ok,
            detail="no engine answers" + (", and none is needed for this" if ok else ""),
            hint="" if ok else _RUNTIME,
        )
    ok = way != "requests" or "nvidia" in engine.default_runtime
    detail = engine.default_runtime + ("" if way == "requests" else ", and any will do")
    hint = _RUNTIME
    if engine.name == "podman":
        hint = (
            'set [engine] runtime="nvidia" in /etc/containers/containers.conf, with'
            ' [engine.runtimes] nvidia=["/usr/bin/nvidia-container-runtime"]'
        )
    return Finding(name="engine's default runtime", ok=ok, detail=detail, hint="" if ok else hint)


def _cdi(facts: GpuFacts) -> Finding:
    """Never a fault: kind passes no --device on; it is what people look for."""
    kit, engine = facts.host.toolkit, facts.engine
    assert kit is not None
    folders = " and ".join(engine.cdi_folders) if engine and engine.cdi_folders else ""
    detail = f"on, from {folders}" if folders else "off" if engine else "no engine answers"
    named = f"; {len(kit.listed)} devices listed" if kit.listed else "; no device listed"
    return Finding(
        name="CDI in the engine",
        ok=True,
        detail=f"{detail}{named}; kind does not use it",
        hint="",
    )


def _masking(facts: GpuFacts) -> Finding:
    """Never a fault: nodes mask it themselves; told since others' recipes fail on it."""
    kit = facts.host.toolkit
    hidden = gpu_cards.masked(facts.params)
    said = {True: "masked here too", False: "open here", None: "not read"}[hidden]
    who = "nodes mask it themselves"
    if kit is not None and kit.mode != "legacy":
        who += f"; {kit.mode} masks no folder (umount: /proc/driver/nvidia: not mounted elsewhere)"
    return Finding(name="/proc/driver/nvidia", ok=True, detail=f"{said}; {who}")


def _links(facts: GpuFacts) -> Finding:
    """Nodes get theirs from us; the machine's own containers may lack them."""
    systemd = facts.engine is not None and facts.engine.cgroup_driver == "systemd"
    lacking = systemd and not facts.char_links
    detail = "there" if facts.char_links else "none"
    if lacking:
        detail += ": other containers lose cards at systemctl daemon-reload; nodes have their own"
    return Finding(
        name="/dev/char links",
        ok=True,
        detail=detail,
        hint=f"optional: {_CHAR_LINKS}" if lacking else "",
    )


def _why(error: InputError) -> str:
    return f"{error.what}: {error.why}" if error.why else error.what


def _version(version: toolkit.Version) -> str:
    return ".".join(map(str, version))


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
