"""The front as containerd calls it, before a runtime that only records."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest

from .conftest import Front

LENT = ["image docker.io/testbed/base:1", "bind /usr/bin /usr/bin", "bind /cache/env /opt/env"]


def notes(kind: str = "container", image: str = "testbed/base:1") -> dict[str, str]:
    return {
        "io.kubernetes.cri.container-type": kind,
        "io.kubernetes.cri.image-name": image,
    }


def spec(**more: Any) -> dict[str, Any]:
    return {
        "ociVersion": "1.2.0",
        "process": {"args": ["sh"], "oomScoreAdj": 1000},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup"},
            {"destination": "/etc/hosts", "type": "bind", "source": "/h", "options": ["rbind"]},
            {"destination": "/usr/bin/x", "type": "bind", "source": "/x", "options": ["rbind"]},
        ],
        "linux": {"cgroupsPath": "/k/x", "resources": {"cpu": {}}, "namespaces": []},
        **more,
    }


def sources(front: Front) -> list[str]:
    return [mount["source"] for mount in front.result()["mounts"]]


def test_the_runtime_gets_all_arguments_after_ours(front: Front) -> None:
    front.configure("argument --rootless=true", "argument --debug")
    front.spec(spec())
    result = front.create()
    assert (result.returncode, result.stdout, result.stderr) == (7, "", "")
    assert front.call()["argv"] == [
        *("--rootless=true", "--debug", "--root", "/run/x", "--log", str(front.log)),
        *("--log-format", "json", "create", "--bundle", str(front.bundle)),
        *("--pid-file", "/run/x/init.pid", "create"),
    ]
    assert front.call()["files"] == ["config.json"], "no part files are left"
    assert not front.log.exists()


def test_unknown_content_survives_exactly(front: Front) -> None:
    text = (
        '{"x":18446744073709551615,"y":[1.0e-7,-0,null,true],"z":"\\u00e4\\/",'
        '"linux":{"n":1.50},"process":{"rlimits":[]},"mounts":[]}'
    )
    front.spec(text)
    assert front.create().returncode == 7
    assert (front.bundle / "config.json").read_text() == text


def test_mode_of_the_configuration_is_kept(front: Front) -> None:
    front.spec(spec())
    path = front.bundle / "config.json"
    path.chmod(0o640)
    front.create()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_cgroups_are_kept_unless_told(front: Front) -> None:
    front.spec(spec())
    front.create()
    assert front.result() == spec()


def test_cgroups_are_dropped(front: Front) -> None:
    front.configure("cgroups drop")
    document = spec()
    document["mounts"].append({"destination": "/x", "type": "cgroup2", "source": "c2"})
    front.spec(document)
    front.create()
    assert front.result()["linux"] == {"namespaces": []}
    assert sources(front) == ["proc", "/h", "/x"]


def test_oom_score_is_dropped_where_told(front: Front) -> None:
    front.configure("oom-score drop")
    front.spec(spec())
    front.create()
    assert front.result()["process"] == {"args": ["sh"]}


@pytest.mark.parametrize("asked", [-998, 1000])
def test_oom_score_is_raised_to_the_own_one(front: Front, asked: int) -> None:
    own = int(Path("/proc/self/oom_score_adj").read_text())
    front.spec(spec(process={"oomScoreAdj": asked}))
    front.create()
    assert front.result()["process"]["oomScoreAdj"] == max(asked, own)


@pytest.mark.parametrize(
    "image", ["testbed/base:1", "docker.io/testbed/base:1", "docker.io/library/testbed/base:1"]
)
def test_lent_folders_come_before_the_first_other_bind(front: Front, image: str) -> None:
    front.configure(*LENT)
    front.spec(spec(annotations=notes(image=image)))
    front.create()
    assert sources(front) == ["proc", "cgroup", "/usr/bin", "/cache/env", "/h", "/x"]
    assert front.result()["mounts"][2] == {
        "destination": "/usr/bin",
        "type": "bind",
        "source": "/usr/bin",
        "options": ["rbind", "ro", "nosuid", "nodev"],
    }


@pytest.mark.parametrize(
    "annotations",
    [
        notes(kind="sandbox"),
        notes(image="testbed/base:2"),
        notes(image="evil/testbed/base:1"),
        notes(image=""),
        {},
        None,
    ],
)
def test_others_are_lent_nothing(front: Front, annotations: dict[str, str] | None) -> None:
    front.configure(*LENT)
    front.spec(spec(annotations=annotations))
    front.create()
    assert sources(front) == ["proc", "cgroup", "/h", "/x"]


def test_a_star_stands_for_all_tags(front: Front) -> None:
    front.configure("image testbed/base:*", "bind /usr/bin /usr/bin")
    front.spec(spec(annotations=notes(image="testbed/base:77")))
    front.create()
    assert sources(front)[2] == "/usr/bin"


def test_lent_folders_reach_a_container_without_mounts(front: Front) -> None:
    front.configure(*LENT)
    front.spec({"annotations": notes()})
    front.create()
    assert sources(front) == ["/usr/bin", "/cache/env"]


def test_limits_above_the_own_are_lowered(front: Front) -> None:
    limits = [
        {"type": "RLIMIT_NOFILE", "hard": 1 << 40, "soft": 1 << 30},
        {"type": "RLIMIT_CORE", "hard": 0, "soft": 0},
        {"type": "RLIMIT_UNKNOWN", "hard": 1 << 40, "soft": 5},
    ]
    front.prefix = ["prlimit", "--nofile=100:200"]
    if os.geteuid() == 0:  # root may raise limits: take that right away
        front.prefix += ["setpriv", "--bounding-set=-sys_resource", "--inh-caps=-sys_resource"]
    front.spec(spec(process={"rlimits": limits}))
    assert front.create().returncode == 7
    assert front.result()["process"]["rlimits"] == [
        {"type": "RLIMIT_NOFILE", "hard": 200, "soft": 200},
        *limits[1:],
    ]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give capabilities up")
def test_capabilities_outside_the_bounding_set_are_dropped(front: Front) -> None:
    front.prefix = ["setpriv", "--bounding-set=-net_admin,-sys_ptrace"]
    asked = ["CAP_CHOWN", "CAP_NET_ADMIN", "CAP_SYS_PTRACE", "CAP_FUTURE"]
    sets = dict.fromkeys(["bounding", "effective", "permitted", "ambient"], asked)
    front.spec(spec(process={"capabilities": {**sets, "inheritable": []}}))
    assert front.create().returncode == 7
    kept = front.result()["process"]["capabilities"]
    assert kept == {**{key: ["CAP_CHOWN", "CAP_FUTURE"] for key in sets}, "inheritable": []}


def devpts(front: Front) -> list[str]:
    options = ["nosuid", "mode=0620", "gid=5"]
    front.spec(spec(mounts=[{"destination": "/dev/pts", "type": "devpts", "options": options}]))
    assert front.create().returncode == 7, "front failed"
    found: list[str] = front.result()["mounts"][0]["options"]
    return found


def test_gid_of_devpts_is_kept_where_it_is_mapped(front: Front) -> None:
    if Path("/proc/self/gid_map").read_text().split() != ["0", "0", "4294967295"]:
        pytest.skip("the tests run in a user namespace of their own")
    assert devpts(front) == ["nosuid", "mode=0620", "gid=5"]


def test_gid_of_devpts_is_dropped_where_it_is_not(front: Front) -> None:
    front.prefix = ["unshare", "--user", "--map-root-user"]
    assert devpts(front) == ["nosuid", "mode=0620"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--log=L", "create", "-b", "B", "id"],
        ["--root=/x", "run", "--bundle=B", "--no-pivot", "id"],
        ["--debug", "create", "--console-socket", "create", "--bundle", "B", "id"],
        # As conmon calls for Podman, and containerd where a checkpoint is started.
        ["--cgroup-manager", "cgroupfs", "--log=L", "create", "--bundle", "B", "id"],
        ["--root", "/x", "restore", "--image-path", "/i", "--bundle", "B", "id"],
        ["create", "-f", "config.json", "-b", "B", "id"],
        ["create", "--config=B/config.json", "id"],
    ],
)
def test_bundles_are_found_in_any_order(front: Front, arguments: list[str]) -> None:
    front.configure("cgroups drop")
    front.spec(spec())
    bundle = str(front.bundle)
    front.run(*[re.sub(r"(?<![A-Z])B(?=$|/)", bundle, word) for word in arguments])
    assert "cgroupsPath" not in front.result()["linux"]


def test_without_a_bundle_the_working_folder_is_meant(front: Front) -> None:
    front.configure("cgroups drop")
    front.spec(spec())
    shutil.copy(front.bundle / "config.json", front.folder)
    assert front.run("create", "id").returncode == 7
    document = json.loads((front.folder / "config.json").read_text())
    assert "cgroupsPath" not in document["linux"]


@pytest.mark.parametrize("command", ["state", "start", "kill", "delete", "features"])
def test_other_commands_change_nothing(front: Front, command: str) -> None:
    front.configure("cgroups drop")
    front.spec(spec())
    assert front.run(command, "--bundle", str(front.bundle), "create").returncode == 7
    assert front.result() == spec()


def test_exec_changes_the_process_file(front: Front) -> None:
    front.configure("oom-score drop")
    process = front.folder / "process.json"
    process.write_text('{"args":["a"],"oomScoreAdj":3,"cwd":"/"}')
    front.run("--log", "l", "exec", "--process", str(process), "--detach", "id")
    assert process.read_text() == '{"args":["a"],"cwd":"/"}'
    assert front.call()["argv"][2:] == ["exec", "--process", str(process), "--detach", "id"]


def test_exec_without_a_process_file_passes(front: Front) -> None:
    assert front.run("exec", "id", "create", "x").returncode == 7


# --- errors reach the user -----------------------------------------------------------------


def refused(front: Front) -> str:
    """The message, having checked that it is in runc's log as well."""
    result = front.create()
    assert result.returncode == 1
    message = result.stderr.rstrip("\n")
    assert message.startswith("vgpu-oci-front: ")
    assert "\n" not in message
    entry = json.loads(front.log.read_text())
    assert (entry["level"], entry["msg"]) == ("error", message)
    assert not (front.folder / "call.json").exists(), "the runtime was called"
    return message


def test_missing_configuration(front: Front) -> None:
    front.config.unlink()
    assert "cannot open" in refused(front)
    assert str(front.config) in refused_text(front)


def test_configuration_beside_the_program(front: Front) -> None:
    """For engines that start their runtime with an environment of their own."""
    front.program = Path(shutil.copy(front.program, front.folder / "my-front"))
    front.config.rename(front.folder / "my-front.conf")
    front.named = False
    front.spec(spec())
    assert front.create().returncode == 7

    front.configure(runtime=Path("/nonexistent/runc"))
    front.named = True
    assert "cannot start /nonexistent/runc" in front.create().stderr, "the variable goes first"


def test_configuration_of_the_machine_is_the_last_resort(front: Front) -> None:
    if Path("/etc/vgpu-testbed/front.conf").exists():
        pytest.skip("this machine has one")
    front.named = False
    assert "cannot open /etc/vgpu-testbed/front.conf: No such file" in refused(front)


def refused_text(front: Front) -> str:
    front.log.unlink(missing_ok=True)
    return refused(front)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("nonsense here", "unknown word"),
        ("cgroups maybe", "unknown choice"),
        ("bind /a /b", "before the first image"),
        ("image", "one word and its argument"),
        ("image x y z u", "one word and its argument"),
        ("runtime runc", "absolute"),
    ],
)
def test_bad_lines_are_named(front: Front, line: str, why: str) -> None:
    front.configure("# a comment", "", line)
    message = refused(front)
    assert f"line 4 ({line.split()[0]})" in message
    assert why in message


def test_configuration_without_runtime(front: Front) -> None:
    front.config.write_text("cgroups drop\n")
    assert "no runtime is named" in refused(front)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"mounts":', "\x00"])
def test_unreadable_container_configuration(front: Front, text: str) -> None:
    front.spec(text)
    assert "config.json" in refused(front)
    assert (front.bundle / "config.json").read_text() == text, "left as it was"


def test_missing_container_configuration(front: Front) -> None:
    assert "No such file" in refused(front)


def test_missing_runtime(front: Front) -> None:
    front.configure(runtime=Path("/nonexistent/runc"))
    front.spec(spec())
    assert "cannot start /nonexistent/runc: No such file" in refused(front)


@pytest.mark.parametrize(
    "document",
    [
        {"mounts": {}, "linux": [], "process": "x", "annotations": 3},
        {"mounts": [1, None, [], {"type": 3}, {"type": "devpts", "options": "gid=5"}]},
        {"process": {"capabilities": [1], "rlimits": {"a": 1}, "oomScoreAdj": "x"}},
        {"process": {"capabilities": {"bounding": "all"}, "rlimits": [1, {"hard": -1}, {}]}},
        {"process": {"rlimits": [{"type": "RLIMIT_NOFILE", "hard": 1.5, "soft": None}]}},
        {"annotations": {"io.kubernetes.cri.container-type": "container"}},
    ],
)
def test_unexpected_types_pass_through(front: Front, document: dict[str, Any]) -> None:
    front.configure("cgroups drop", *LENT)
    front.spec(document)
    assert front.create().returncode == 7, "left to the runtime to judge"
    assert front.result() == document
