"""What the doctor says of kind and of real cards, on machines that others have."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from testbed.card.spec import CardSpec
from testbed.errors import InputError
from testbed.lab import bundle, doctor_gpu, doctor_kind
from testbed.lab.cluster.kind import gpu, gpu_cards, gpu_host, toolkit
from testbed.lab.cluster.protocol import ClusterStatus, NodeStatus
from testbed.lab.doctor import Finding

DATA = Path(__file__).parents[2] / "data/toolkit"
H200 = "GPU-70fdb96f-f37a-30df-7b71-24f4b3cfaa1c"


def text(name: str) -> str:
    return (DATA / name).read_text()


CARD = gpu_cards.RealCard(index=0, uuid=H200, name="NVIDIA H200", minor=0)
HOOKED = {
    "/usr/bin/nvidia-ctk": "/usr/bin/nvidia-ctk",
    "/usr/bin/nvidia-cdi-hook": "/usr/bin/nvidia-cdi-hook",
}
DOCKER = {
    name: toolkit.parse_docker_info(text(f"made/docker-{name}.json"))
    for name in ("20.10-cgroup1", "24-nvidia", "29-cdi")
}


def kit(version: str, config: str = "", listed: str = "", *, hook: bool = True) -> toolkit.Toolkit:
    major, minor, patch = map(int, version.split("."))
    programs = dict(HOOKED)
    if not hook:
        del programs["/usr/bin/nvidia-cdi-hook"]
    return toolkit.Toolkit(
        version=(major, minor, patch),
        config=toolkit.parse_config(config),
        listed=toolkit.parse_cdi_list(listed),
        programs=programs,
    )


def machine(version: str = "1.20.0") -> doctor_gpu.GpuFacts:
    """A machine with an H200 and that toolkit, as it comes."""
    return doctor_gpu.GpuFacts(
        host=gpu.GpuHost(
            cards=(CARD,),
            driver="580.159.04",
            toolkit=kit(version),
            parts=toolkit.parse_specification(text(f"h200/specification-{version}.json")),
        ),
        errors={},
        engine=DOCKER["24-nvidia"],
        params=text("h200/params.txt"),
    )


def requests(version: str, config: str, listed: str = "") -> doctor_gpu.GpuFacts:
    """A machine on which only the toolkit can put the driver into nodes."""
    return replace(machine(), host=gpu.GpuHost(cards=(CARD,), toolkit=kit(version, config, listed)))


def judged(facts: doctor_gpu.GpuFacts) -> dict[str, Finding]:
    return {each.name: each for each in doctor_gpu.findings(facts)}


def faults(facts: doctor_gpu.GpuFacts) -> list[str]:
    return [name for name, each in judged(facts).items() if not each.ok]


@pytest.mark.parametrize("version", ["1.14.6", "1.17.8", "1.18.1", "1.20.0"])
def test_a_machine_with_driver_and_toolkit_needs_nothing_else(version):
    found = judged(machine(version))
    assert not faults(machine(version))
    assert found["NVIDIA driver"].detail == "580.159.04; 0: NVIDIA H200"
    assert found["toolkit's mode"].detail.startswith("jit-cdi" if version >= "1.18" else "legacy")
    assert "mounts of the driver's files" in found["cards into nodes"].detail
    # The known trap of others' recipes is told where it would be met.
    trap = "not mounted" in found["/proc/driver/nvidia"].detail
    assert trap is (version >= "1.18")


ACCEPTS = "accept-nvidia-visible-devices-as-volume-mounts = true\n"


@pytest.mark.parametrize(
    ("facts", "named", "command"),
    [
        (
            replace(
                machine(),
                host=gpu.GpuHost(cards=(), toolkit=kit("1.20.0")),
                errors={
                    "cards": InputError("nvidia-smi lists no card", hint="sudo modprobe nvidia")
                },
            ),
            "NVIDIA driver",
            "modprobe",
        ),
        (
            replace(machine(), host=gpu.GpuHost(cards=(CARD,))),
            "container toolkit",
            "nvidia-container-toolkit-base",
        ),
        (
            replace(machine(), host=replace(machine().host, toolkit=kit("1.20.0", hook=False))),
            "container toolkit",
            "nvidia-container-toolkit-base",
        ),
        (replace(machine(), uvm=False), "/dev/nvidia-uvm", "nvidia-modprobe -u"),
        (
            requests("1.12.0", ""),
            "accept-nvidia-visible-devices-as-volume-mounts",
            "volume-mounts=true --in-place",
        ),
        (
            replace(requests("1.12.0", ACCEPTS), engine=DOCKER["29-cdi"]),
            "engine's default runtime",
            "--set-as-default",
        ),
        (
            requests("1.12.0", ACCEPTS + '[nvidia-container-runtime]\nmode = "cdi"'),
            "toolkit's mode",
            "nvidia-ctk cdi generate",
        ),
        (
            replace(
                machine(),
                errors={"parts": InputError("nvidia-ctk does not describe", hint="nvidia-ctk cdi")},
            ),
            "cards into nodes",
            "nvidia-ctk cdi",
        ),
        (
            replace(
                machine(),
                host=replace(machine().host, cards=(replace(CARD, mig=True),)),
            ),
            "MIG devices",
            "nvidia-smi mig -i 0 -cgi",
        ),
    ],
)
def test_each_precondition_is_named_with_the_command_that_mends_it(facts, named, command):
    found = judged(facts)
    assert named in faults(facts)
    assert command in found[named].hint
    # The same machine without the fault: the finding can pass.
    whole = requests("1.12.0", ACCEPTS) if facts.host.parts is None else machine()
    assert named not in faults(whole)


def test_what_the_way_does_not_need_is_told_and_is_no_fault():
    facts = replace(machine(), engine=DOCKER["20.10-cgroup1"])
    found = judged(facts)
    assert not faults(facts)
    assert "not needed" in found["accept-nvidia-visible-devices-as-volume-mounts"].detail
    assert "any will do" in found["engine's default runtime"].detail
    assert judged(replace(machine(), engine=DOCKER["29-cdi"]))[
        "CDI in the engine"
    ].detail.startswith("on, from /etc/cdi and /var/run/cdi")
    assert found["CDI in the engine"].detail.startswith("off")


def test_links_of_device_nodes_matter_under_the_systemd_driver_only():
    lacking = replace(machine(), char_links=False)
    assert "create-dev-char-symlinks" in judged(lacking)["/dev/char links"].hint
    other = replace(lacking, engine=DOCKER["20.10-cgroup1"])
    assert not judged(other)["/dev/char links"].hint
    assert not judged(machine())["/dev/char links"].hint


def test_podman_is_told_its_own_words():
    podman = toolkit.parse_podman_info(text("made/podman-4.3.json"))
    facts = replace(requests("1.12.0", ACCEPTS), engine=podman)
    assert "containers.conf" in judged(facts)["engine's default runtime"].hint
    ready = toolkit.parse_podman_info(text("made/podman-5-nvidia.json"))
    assert "engine's default runtime" not in faults(replace(facts, engine=ready))


def test_every_fault_of_cards_has_a_hint():
    for facts in (
        machine(),
        requests("1.12.0", ""),
        doctor_gpu.GpuFacts(host=gpu.GpuHost(cards=()), errors={}, engine=None),
    ):
        for each in doctor_gpu.findings(facts):
            assert each.ok or each.hint, each


V1, V2 = "1 2 0:1 / /c rw - cgroup cgroup rw\n", "1 2 0:1 / /d rw - cgroup2 cgroup2 rw\n"


@pytest.mark.parametrize(
    ("engine", "mounts", "word", "ok"),
    [
        (None, V2, "version 2", True),
        (None, V1, "version 1; kubelet is told", True),
        (None, V1 + V2, "version 1", True),  # engines use version 1 there
        (None, "", "none are mounted", False),
        ("20.10-cgroup1", V1, "version 1, driver cgroupfs", True),
        ("29-cdi", V2, "version 2, driver systemd", True),
    ],
)
def test_cgroups(engine, mounts, word, ok):
    found = doctor_kind.cgroups(DOCKER[engine] if engine else None, mounts)
    assert found.ok is ok and word in found.detail
    assert bool(found.hint) is not ok


@pytest.mark.parametrize(
    ("free", "watches", "ok"),
    [(128, "524288", True), (None, None, True), (20, "524288", False), (512, "8192", False)],
)
def test_inotify(free, watches, ok):
    found = doctor_kind.inotify(free, watches)
    assert found.ok is ok
    assert ("fs.inotify.max_user_instances=512" in found.hint) is not ok


def test_an_engine_that_does_not_answer_is_a_finding(monkeypatch):
    refused = text("made/docker-server-errors.json")
    monkeypatch.setattr(doctor_kind, "ask", lambda *_, **__: gpu_host.Answer(code=1, out=refused))
    found = doctor_kind.engine_facts("docker")
    assert isinstance(found, InputError) and "permission denied" in found.why


@pytest.mark.parametrize(
    ("provider", "profile", "asked"),
    [
        ("kind", "nvidia", ("kind", True)),
        ("kind", "t4", ("kind", False)),
        ("process", "t4", ("process", False)),
    ],
)
def test_a_bundle_holds_what_matters_to_its_cluster(monkeypatch, provider, profile, asked):
    seen = []
    monkeypatch.setattr(
        bundle, "diagnose", lambda kind, *, real_cards: seen.append((kind, real_cards)) or ()
    )
    node = NodeStatus(name="n", ready=True, profiles=(CardSpec(profile=profile, count=1),))
    bundle._findings(ClusterStatus(name="x", provider=provider, state="broken", nodes=(node,)))
    assert seen == [asked]


@pytest.mark.parametrize(
    ("uid", "facts", "own"),
    [(0, None, True), (0, DOCKER["24-nvidia"], False), (1000, None, False)],
)
def test_what_the_first_kind_cluster_makes_is_told(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    uid: int,
    facts: toolkit.EngineFacts | None,
    own: bool,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("KIND_EXPERIMENTAL_PROVIDER", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    told = doctor_kind.unmade(facts)
    assert [each.split(" (")[0] for each in told[:2]] == [
        "kind",
        "a node image unless one can be pulled",
    ]
    assert ("an own Docker of Debian packages" in told) is own


def test_what_was_made_before_is_not_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for module, name in (
        (doctor_kind.tools, "find"),
        (doctor_kind.node, "find"),
        (doctor_kind.packages, "cached"),
    ):
        monkeypatch.setattr(module, name, lambda *_: tmp_path)
    assert doctor_kind.unmade(None) == ()
