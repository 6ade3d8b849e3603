"""What NVIDIA's tools and the engines print, read by us (tests/data/toolkit/README.md)."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.errors import InputError
from testbed.lab.cluster.kind import gpu_cards, toolkit

DATA = Path(__file__).parents[2] / "data/toolkit"
H200 = "GPU-70fdb96f-f37a-30df-7b71-24f4b3cfaa1c"
VERSIONS = ("1.14.6", "1.17.8", "1.18.1", "1.20.0")


def text(name: str) -> str:
    return (DATA / name).read_text()


def test_a_real_card():
    (card,) = gpu_cards.joined(
        gpu_cards.parse_list(text("h200/smi-list.txt")),
        gpu_cards.parse_query(text("h200/smi-query.txt")),
        [pair for pair in [gpu_cards.parse_information(text("h200/information.txt"))] if pair],
    )
    assert card == gpu_cards.RealCard(index=0, uuid=H200, name="NVIDIA H200", minor=0)
    (queried,) = gpu_cards.parse_query(text("h200/smi-query.txt"))
    assert (queried.driver, queried.memory_mib) == ("580.159.04", 143_771)
    assert gpu_cards.masked(text("h200/params.txt")) is False


@pytest.mark.parametrize("version", VERSIONS)
def test_what_each_toolkit_says_beside_a_real_card(version):
    found = toolkit.parse_version(text(f"h200/version-{version}.txt"))
    assert found == tuple(map(int, version.split(".")))
    config = toolkit.parse_config(text(f"h200/config-{version}.toml"))
    assert not config.accept_volume_mounts
    assert config.resolved(found) == ("jit-cdi" if found >= (1, 18, 0) else "legacy")
    parts = toolkit.parse_specification(text(f"h200/specification-{version}.json"))
    assert parts.devices == {H200: ("/dev/nvidia0",)}
    assert "/dev/nvidiactl" in parts.common and "/dev/nvidia-uvm" in parts.common
    assert parts.folders == ("/usr/local/nvidia/lib64",)
    assert parts.files["/usr/local/nvidia/lib64/libcuda.so.580.159.04"].endswith("580.159.04")
    assert "/usr/local/nvidia/bin/nvidia-smi" in parts.files


@pytest.mark.parametrize("version", VERSIONS[1:])
def test_cards_are_listed_by_index_and_uuid(version):
    names = toolkit.parse_cdi_list(text(f"h200/list-{version}.txt"))
    assert names == ("nvidia.com/gpu=0", f"nvidia.com/gpu={H200}", "nvidia.com/gpu=all")


def test_links_of_libraries_are_read_where_a_toolkit_makes_them():
    links = toolkit.parse_specification(text("h200/specification-1.20.0.json")).links
    folder = "/usr/local/nvidia/lib64"
    assert links[f"{folder}/libcuda.so"] == "libcuda.so.1"
    assert links[f"{folder}/libnvidia-ml.so.1"] == "libnvidia-ml.so.580.159.04"
    assert links[f"{folder}/gbm/nvidia-drm_gbm.so"] == "../libnvidia-allocator.so.1"


def test_mig_devices_belong_to_their_card():
    cards = gpu_cards.joined(
        gpu_cards.parse_list(text("made/smi-list-mig.txt")),
        gpu_cards.parse_query(text("made/smi-query-mig.txt")),
        [],
    )
    assert [card.mig for card in cards] == [True, False, True]
    assert [(mig.number, mig.profile) for mig in cards[0].devices] == [
        (0, "1g.10gb"),
        (1, "3g.40gb"),
    ]
    assert cards[2].devices == ()  # in MIG mode, and nothing was made of it
    (old,) = gpu_cards.parse_list(text("made/smi-list-mig-old.txt"))
    assert old.devices[0].uuid == "MIG-GPU-932bfb2c-849a-2a22-1e84-9eff6bc02b39/1/0"
    parts = toolkit.parse_specification(text("made/specification-mig.json"))
    first = cards[0].devices[0].uuid
    assert parts.devices[first] == (
        "/dev/nvidia0",
        "/dev/nvidia-caps/nvidia-cap66",
        "/dev/nvidia-caps/nvidia-cap67",
    )
    assert "nvidia.com/gpu=0:1" in toolkit.parse_cdi_list(text("made/list-mig.txt"))
    assert len(toolkit.parse_cdi_list(text("made/list-mig.txt"))) == 7


def test_fields_that_a_card_has_not():
    first, second = gpu_cards.parse_query(text("made/smi-query-geforce.txt"))
    assert (first.driver, first.memory_mib, first.mig) == ("470.82.01", 24_576, False)
    assert (second.driver, second.memory_mib, second.mig) == ("470.82.01", None, False)


def test_eight_cards_in_their_order():
    cards = gpu_cards.parse_list(text("made/smi-list-8.txt"))
    assert [card.index for card in cards] == list(range(8))
    assert len({card.uuid for card in cards}) == 8


@pytest.mark.parametrize(
    ("name", "why", "hint"),
    [
        ("smi-no-driver", "couldn't communicate", "modprobe nvidia"),
        ("smi-mismatch", "version mismatch", "rmmod"),
        ("smi-unknown-error", "Unknown Error", "#48"),
        ("smi-no-devices", "No devices", "dmesg"),
    ],
)
def test_a_driver_that_lists_nothing_has_a_hint_of_its_own(name, why, hint):
    with pytest.raises(InputError, match=why) as failed:
        gpu_cards.parse_list(text(f"made/{name}.txt"))
    assert hint in failed.value.hint


@pytest.mark.parametrize(
    ("word", "index", "mig"),
    [
        ("1", 1, None),
        ("0:1", 0, "MIG-22222222-0000-5000-8000-000000000001"),
        ("GPU-11111111-aaaa-bbbb-cccc-000000000002", 2, None),
        ("MIG-22222222-0000-5000-8000-000000000000", 0, "MIG-22222222-0000-5000-8000-000000000000"),
    ],
)
def test_a_card_is_found_by_what_was_written(word, index, mig):
    card, device = gpu_cards.find_device(gpu_cards.parse_list(text("made/smi-list-mig.txt")), word)
    assert (card.index, device.uuid if device else None) == (index, mig)


@pytest.mark.parametrize(
    ("word", "what"),
    [("3", "no card 3"), ("0:7", "no card"), ("MIG-9", "no card"), ("GPU-1111", "several cards")],
)
def test_a_card_that_is_not_there(word, what):
    with pytest.raises(InputError, match=what):
        gpu_cards.find_device(gpu_cards.parse_list(text("made/smi-list-mig.txt")), word)


def test_settings_of_a_machine_set_up_for_requests():
    config = toolkit.parse_config(text("made/config-mounts.toml"))
    assert config.accept_volume_mounts
    assert config.resolved((1, 14, 6)) == config.resolved((1, 20, 0)) == "cdi"
    assert toolkit.parse_config("") == toolkit.ToolkitConfig()


@pytest.mark.parametrize(
    "bad",
    [
        "accept = [",
        '[nvidia-container-runtime]\nmode = "fast"',
        'accept-nvidia-visible-devices-as-volume-mounts = "true"',
        "nvidia-container-runtime = 3",
    ],
)
def test_settings_that_no_toolkit_reads(bad):
    with pytest.raises(InputError, match=r"config\.toml") as failed:
        toolkit.parse_config(bad)
    assert "nvidia-ctk config" in failed.value.hint


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "[]",
        "{}",
        '{"containerEdits": {}}',
        *(
            f'{{"devices": [], "containerEdits": {{"mounts": [{{"hostPath": "{path}", '
            '"containerPath": "/b"}]}}'
            for path in ("a", "/a:b", "/a/../b", "/a\\nb")
        ),
    ],
)
def test_specifications_that_cannot_be_mounted(bad):
    with pytest.raises(InputError, match="cannot be read"):
        toolkit.parse_specification(bad)


def test_versions_that_there_are_and_that_there_are_not():
    assert toolkit.parse_version("NVIDIA Container Toolkit CLI version 1.18.0-rc.2\n") == (1, 18, 0)
    assert toolkit.parse_version("NVIDIA Container Toolkit CLI version unknown\n") is None


def test_docker_of_several_times():
    old = toolkit.parse_docker_info(text("made/docker-20.10-cgroup1.json"))
    assert (old.cgroups, old.cgroup_driver, old.default_runtime) == (1, "cgroupfs", "runc")
    assert old.cdi_folders == () and not old.rootless and not old.apparmor
    ready = toolkit.parse_docker_info(text("made/docker-24-nvidia.json"))
    assert (ready.cgroups, ready.default_runtime, ready.apparmor) == (2, "nvidia", True)
    new = toolkit.parse_docker_info(text("made/docker-29-cdi.json"))
    assert new.cdi_folders == ("/etc/cdi", "/var/run/cdi")
    assert toolkit.parse_docker_info(text("made/docker-rootless.json")).rootless


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("seen/docker-28.2-no-daemon.json", "no version"),
        ("made/docker-server-errors.json", "permission denied"),
    ],
)
def test_a_daemon_that_does_not_answer(name, why):
    with pytest.raises(InputError, match=why):
        toolkit.parse_docker_info(text(name))


def test_podman_of_several_times():
    old = toolkit.parse_podman_info(text("made/podman-4.3.json"))
    assert (old.cgroups, old.cgroup_driver, old.default_runtime) == (1, "cgroupfs", "crun")
    assert toolkit.parse_podman_info(text("made/podman-5-nvidia.json")).default_runtime == "nvidia"
    assert toolkit.parse_podman_info(text("made/podman-rootless.json")).rootless
    assert old.storage == "/var/lib/containers/storage"


@pytest.mark.parametrize("bad", ["", "no JSON", "[]", '{"host": {}}'])
def test_engines_that_say_something_else(bad):
    with pytest.raises(InputError, match=r"cannot be read|no object"):
        toolkit.parse_podman_info(bad)


def test_every_output_says_where_it_is_from():
    readme = text("README.md")
    made = [path.stem for path in DATA.glob("made/*")]
    assert len(made) > 20
    for stem in made:
        said = (f"`{stem}`", *(f"`{stem[:end]}*`" for end in range(len(stem))))
        assert any(word in readme for word in said), stem
    assert {path.name for path in DATA.iterdir()} == {"README.md", "h200", "made", "seen"}
