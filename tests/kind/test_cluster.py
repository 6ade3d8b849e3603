"""A kind cluster in a Docker and in a Podman of our own, from nothing to nothing.

The tests of a cluster build on each other, in the order of this file: bringing one up for
each would take an hour.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed.lab.binaries import kind as kind_tools
from testbed.lab.cluster import resolve
from testbed.lab.cluster.kind import own
from testbed.lab.cluster.kind.place import cgroup_of
from testbed.lab.cluster.process import processes
from testbed.lab.wait import wait_until

from ..pytest_kind_site import site
from .conftest import TESTBED
from .machine import difference, listing

NAME = f"k{os.getpid()}"
CARDS = "a100-80gb:1;t4:1"
#: Percentage points that a share may miss what was asked for here, up and down.
ABOVE, BELOW = 5.0, 15.0
MACHINE = Path(__file__).with_name("machine.py")


#: A test with our fixtures and with pytest-kind's.
BOTH = """
def test_both(submit, cards, cluster, kind_cluster):
    assert cluster.context == f"kind-{kind_cluster.name}"
    nodes = kind_cluster.kubectl("get", "nodes", "-o", "name").split()
    assert nodes == ["node/" + each.name for each in cluster.nodes]
    assert kind_cluster.api.version >= ("1", "30")
    pod = submit(script="import torch; print(torch.cuda.mem_get_info()[1] >> 20)", gpumem="4Gi")
    assert pod.wait_done() == 0
    assert pod.logs() == "4096\\n"
    assert pod.cards[0] in [card.uuid for card in cards]
"""


@pytest.fixture(scope="module", autouse=True)
def machine(home, driver):
    """The machine before all of it; afterwards it is as it was."""
    before = listing([driver.state])
    yield
    told = difference(before, listing([driver.state]))
    assert not told, "\n".join(told)


@pytest.fixture(scope="module")
def docker(driver):
    """Two nodes with different cards in a Docker of our own, with the stack.

    The first ``up`` is killed while it deploys: what it leaves is told, and goes on from there.
    """
    arguments = ("up", "--provider", "kind", "--name", NAME, "--cards", CARDS)
    try:
        strike(driver, arguments, after="✓ stack applied", number=signal.SIGKILL)
        token = driver.record(NAME)["token"]
        left = is_up(driver)
        assert "not deployed" in " ".join(left["notes"])
        driver(*arguments)
        assert driver.record(NAME)["token"] == token
        yield driver
    finally:
        driver("down", "--name", NAME)


def is_up(driver) -> dict[str, Any]:
    """Return the status of the cluster; a busy machine may answer late for once."""
    return wait_until(
        "the cluster is up",
        lambda: driver.json("status", "--name", NAME, rc=None),
        ready=lambda found: found["state"] == "up",
        timeout_s=120,
    )


def strike(driver, arguments: tuple[str, ...], *, after: str, number: int) -> int:
    """Send a command a signal once it has said something; return its exit status."""
    process = driver.start(*arguments)
    seen: list[str] = []
    rest = None
    try:
        for line in process.stderr:
            seen.append(line)
            if after in line:
                break
        else:
            pytest.fail("".join(seen))
        process.send_signal(number)
        rest = threading.Thread(target=process.stderr.read)
        rest.start()
        return process.wait(180)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(180)
        if rest is not None:
            rest.join(30)
        for stream in (process.stdout, process.stderr):
            stream.close()


def inside(driver, *argv: str) -> str:
    """Run a program with the engine's environment of the cluster."""
    record = driver.record(NAME)
    return subprocess.run(
        argv,
        env={**os.environ, **record["environment"]},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout


def test_nodes_and_their_cards(docker):
    found = is_up(docker)
    assert found["provider"] == "kind"
    assert found["context"] == f"kind-{NAME}"
    nodes = {each["name"]: each for each in found["nodes"]}
    assert list(nodes) == [f"{NAME}-control-plane", f"{NAME}-worker"]
    assert all(each["ready"] for each in nodes.values())
    profiles = [each["profiles"][0]["profile"] for each in nodes.values()]
    assert profiles == ["a100-80gb", "t4"]


def test_kind_and_kubectl_know_it(docker):
    kind = kind_tools.find()
    assert kind is not None
    assert inside(docker, str(kind), "get", "clusters").split() == [NAME]
    # What status says to export leads there, also from a shell that has neither of the two.
    (told,) = docker.json("status", "--name", NAME)["reach"]
    export = told[told.index("export ") :]
    names = "docker ps --format '{{.Names}}'"
    done = subprocess.run(
        ["/bin/sh", "-c", f"{export} && kind get clusters && {names}"],
        env={key: value for key, value in os.environ.items() if not key.startswith("DOCKER_")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    nodes = {f"{NAME}-control-plane", f"{NAME}-worker"}
    assert set(done.stdout.split()) == {NAME, *nodes}
    config = yaml.safe_load((docker.state / NAME / "kubeconfig").read_text())
    assert config["current-context"] == f"kind-{NAME}"
    assert (docker.state / NAME / "kubeconfig").stat().st_mode & 0o777 == 0o600
    said = docker("kubectl", "--name", NAME, "get", "nodes", "-o", "name").stdout
    assert len(said.split()) == 2


def test_each_node_runs_pods_on_its_own_card(docker, tmp_path):
    """Also: pods run with the runtime's seccomp profile, as on the process cluster."""
    code = (
        "import torch; print(torch.cuda.get_device_name());"
        "print([l.split()[1] for l in open('/proc/self/status') if l.startswith('Seccomp:')])"
    )
    for node, card in ((f"{NAME}-control-plane", "A100"), (f"{NAME}-worker", "T4")):
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": card.lower()},
            "spec": {
                "restartPolicy": "Never",
                "nodeSelector": {"kubernetes.io/hostname": node},
                "containers": [
                    {
                        "name": "main",
                        "image": "testbed/pytorch:local",
                        "command": ["python", "-c", code],
                        "resources": {"limits": {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 2048}},
                    }
                ],
            },
        }
        file = tmp_path / f"{card}.yaml"
        file.write_text(yaml.safe_dump(pod))
        kubectl = ("kubectl", "--name", NAME)
        docker(*kubectl, "apply", "-f", str(file))
        phase = "jsonpath={.status.phase}=Succeeded"
        docker(*kubectl, "wait", f"pod/{card.lower()}", f"--for={phase}", "--timeout=180s")
        said = docker(*kubectl, "logs", card.lower()).stdout.splitlines()
        assert card in said[0]
        assert said[1] == "['2']"
        docker(*kubectl, "delete", "pod", card.lower(), "--now")


def test_the_main_job_and_its_control(docker, tmp_path):
    """Of memory every byte counts; shares and times are also the host's, who may be busy."""
    arguments = ("run", "co_location/a100-example", "--name", NAME, "--runs", str(tmp_path))
    (record,) = docker.json(*arguments, rc=None)["cases"]
    assert record["environment"]["provider"] == "kind"
    shares, others = [], []
    for check in record["checks"]:
        (shares if check["name"].startswith("share") else others).append(check)
    assert {check["name"] for check in shares} == {"share_card", "share_work"}
    for check in shares:
        figure = check["card"] if check["name"] == "share_card" else check["workload"]
        assert check["asked"] - BELOW <= figure <= check["asked"] + ABOVE, check
    assert {"memory_cap", "card_bytes", "visible_size"} <= {check["name"] for check in others}
    assert not [each for each in others if each["verdict"] != "pass" and each["name"] != "freed"]
    assert record["control"]["verdict"] == "pass"  # every limit fails without the limiter


def test_pytest_uses_it_and_pytest_kind_s_fixture_is_the_same(docker, tmp_path):
    """With the real pytest-kind (GPL-3.0+, on the path of this session alone)."""
    (tmp_path / "test_both.py").write_text(BOTH)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--cluster-name", NAME],
        cwd=tmp_path,
        # pykube, which pytest-kind uses, leaves its certificates in the folder for such files.
        env=docker.environment(PYTHONPATH=str(site()), TMPDIR=str(tmp_path)),
        text=True,
        capture_output=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    is_up(docker)  # nobody took it down


def test_a_second_up_keeps_it(docker):
    before = docker.record(NAME)
    docker("up", "--name", NAME, "--cards", CARDS)
    docker("up", "--name", NAME)  # what nobody says stays as it is
    assert docker.record(NAME)["token"] == before["token"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--cards", "a100-80gb:1;a100-40gb:1"), "its cards are 'a100-80gb:1;t4:1'"),
        (("--cards", "a100-80gb:1", "--nodes", "3"), "it has 2 nodes, not 3"),
        (("--cards", CARDS, "--port", "1"), "its port is"),
        (("--cards", CARDS, "--provider", "process"), "is a kind cluster, not process"),
    ],
)
def test_another_cluster_of_that_name_is_refused(docker, arguments, told):
    done = docker("up", "--name", NAME, *arguments, rc=2)
    assert told in done.stderr
    assert f"testbed down --name {NAME}" in done.stderr


def test_an_image_of_other_content_is_drift(docker):
    path = docker.state / NAME / "kind.json"
    text = path.read_text()
    image = docker.record(NAME)["image"]
    try:
        path.write_text(text.replace(image, "testbed/kind-node:older"))
        done = docker("up", "--name", NAME, "--cards", CARDS, rc=2)
    finally:
        path.write_text(text)
    assert "its nodes are of image testbed/kind-node:older" in done.stderr


def test_auto_takes_an_engine_that_answers(docker, monkeypatch):
    """The engine of the cluster stands for one that was there: its runtime is the front."""
    for key, value in docker.record(NAME)["environment"].items():
        monkeypatch.setenv(key, value)
    monkeypatch.delenv("VGPU_TESTBED_ENGINE", raising=False)
    found = resolve("auto", f"{NAME}-other")
    assert found.kind == "kind"
    assert "the engine that is there" in found.why
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent.sock")
    found = resolve("auto", f"{NAME}-other")
    assert found.kind == "process"
    assert "no Docker answers" in found.why and "--provider" in found.why


def test_an_engine_that_was_there(docker):
    """Seen from within its namespaces the cluster's engine is one like any other."""
    other = f"{NAME}o"
    record = docker.record(NAME)
    init = own.init_of(record["token"])
    assert init is not None
    environ = docker.environment(VGPU_TESTBED_ENGINE="there") | record["environment"]
    enter = ["nsenter", "-t", str(init.pid), "--mount", "--net", "--pid", "--ipc", "--uts", "--"]

    def testbed(*arguments: str) -> str:
        done = subprocess.run(
            [*enter, str(TESTBED), *arguments, "--name", other],
            env=environ,
            capture_output=True,
            text=True,
            timeout=400,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def nodes() -> str:
        return inside(docker, "docker", "ps", "-a", "--format", "{{.Names}}")

    try:
        testbed("up", "--provider", "kind", "--bare")
        assert docker.record(other)["own"] is False
        assert f"{other}-control-plane" in nodes()
    finally:
        testbed("down")
    assert f"{other}-control-plane" not in nodes()
    assert f"{NAME}-control-plane" in nodes()
    assert docker.left(other) == []


def test_containerd_makes_no_folders_in_opt(docker):
    """Looked up in its log: a machine that had an engine before has the folders."""
    log = (docker.state / NAME / "engine/logs/docker-containerd.log").read_text()
    assert "io.containerd.internal.v1.opt" not in log
    assert "io.containerd.service.v1.tasks-service" in log  # the control: it names what it loads


def test_logs_and_bundle(docker, tmp_path):
    assert "kubelet" in docker("logs", "kubelet", "--name", NAME, "--tail", "50").stdout.lower()
    assert docker("logs", "apiserver", "--name", NAME, "--tail", "5").stdout
    bundle = tmp_path / "bundle"
    docker("bundle", "--name", NAME, "--out", str(bundle))
    nodes = {path.name for path in (bundle / "components/kind").iterdir() if path.is_dir()}
    assert nodes == {f"{NAME}-control-plane", f"{NAME}-worker"}
    key = yaml.safe_load((docker.state / NAME / "kubeconfig").read_text())
    secret = key["users"][0]["user"]["client-key-data"]
    for path in bundle.rglob("*"):
        if path.is_file():
            text = path.read_text(errors="replace")
            assert secret not in text and "PRIVATE KEY" not in text, path


def test_down_leaves_nothing(docker):
    record = docker.record(NAME)
    init = own.init_of(record["token"])
    assert init is not None  # the control: what is looked for below is there now
    space = Path(f"/proc/{init.pid}/ns/pid").readlink()
    groups = f"*/{cgroup_of(record['token'])}"
    assert in_space(space) and Path(record["data"]).exists()
    docker("down", "--name", NAME)
    assert docker.left(NAME) == []
    assert not Path(record["data"]).exists()
    wait_until(
        "the engine's processes are gone",
        lambda: in_space(space),
        ready=lambda found: not found,
        timeout_s=30,
    )
    assert processes.members(record["token"]) == []
    assert list(Path("/sys/fs/cgroup").glob(groups)) == []
    assert docker.json("status", "--name", NAME, rc=2)["state"] == "absent"


def in_space(space: Path) -> list[str]:
    """Return the processes of a pid namespace; one that only waits to be reaped is none."""
    found = []
    for path in Path("/proc").iterdir():
        try:
            if path.name.isdigit() and (path / "ns/pid").readlink() == space:
                state = (path / "stat").read_text().rpartition(")")[2].split()[0]
                if state not in "ZX":
                    found.append(f"{path.name} {(path / 'comm').read_text().strip()}")
        except OSError:
            continue
    return found


def test_podman(driver, tmp_path):
    name = f"{NAME}p"
    podman = {"KIND_EXPERIMENTAL_PROVIDER": "podman"}
    try:
        driver("up", "--provider", "kind", "--name", name, **podman)
        assert driver.record(name)["engine"] == "podman"
        # What is up is found without being named again.
        report = driver.json("run", "memory_cap/two-pods", "--name", name, "--runs", str(tmp_path))
        assert report["verdict"] == "pass"
        done = driver("up", "--name", name, rc=2, KIND_EXPERIMENTAL_PROVIDER="docker")
        assert "it runs in podman, not docker" in done.stderr
    finally:
        driver("down", "--name", name)
    assert driver.left(name) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_up_leaves_nothing(driver, number):
    name = f"{NAME}i"
    arguments = ("up", "--provider", "kind", "--name", name, "--bare")
    try:
        assert strike(driver, arguments, after="✓ load the node image", number=number) != 0
        if number == signal.SIGKILL:
            token = driver.record(name)["token"]
            assert processes.members(token)  # the control
            assert driver.json("status", "--name", name, rc=2)["state"] == "broken"
        else:
            assert driver.left(name) == []
    finally:
        driver("down", "--name", name)
    assert driver.left(name) == []
    if number == signal.SIGKILL:
        assert processes.members(token) == []


def test_an_up_that_fails_leaves_its_logs_only(driver):
    name = f"{NAME}f"
    arguments = ("up", "--provider", "kind", "--name", name, "--bare")
    try:
        # Docker takes it for an option that it has not, and kind gives up.
        done = driver(*arguments, rc=2, KIND_EXPERIMENTAL_DOCKER_NETWORK="-no-network")
        assert "kind cannot create the cluster" in done.stderr
        bundle = Path(done.stderr.split()[-1])  # said last, and made where the command runs
        assert bundle.is_absolute() and bundle.name.startswith(f"bundle-{name}"), done.stderr
        shutil.rmtree(bundle)
        state = driver.state / name
        assert [path.name for path in state.iterdir()] == ["logs"]
        assert (state / "logs/docker.log").stat().st_size
        assert driver.json("status", "--name", name, rc=None)["state"] == "absent"
    finally:
        driver("down", "--name", name)
    assert driver.left(name) == []


def test_the_comparison_sees_a_change(driver, tmp_path):
    """The control of the comparison: in namespaces where changes harm nobody."""
    changes = """
set -e
python="$1"; machine="$2"; folder="$3"
mkdir -p "$folder/e/u" "$folder/e/w"
mount -t overlay -o lowerdir=/etc,upperdir=$folder/e/u,workdir=$folder/e/w overlay /etc
"$python" "$machine" "$folder" >"$folder/../before.json"
echo 1 >/proc/sys/net/ipv4/ip_forward
ip link add d0 type veth peer name d1
nft add table ip left
mount -t tmpfs tmpfs /mnt
touch /etc/left
mkdir "/mnt/vgpu-testbed-$4" "/mnt/vgpu-testbed-$4$4"
group=$(ls -d /sys/fs/cgroup/memory /sys/fs/cgroup 2>/dev/null | head -1)/vgpu-testbed-left-$$
mkdir "$group"
mkfifo "$folder/../never"
bash -c 'read -r line' "$folder" <>"$folder/../never" &
trap "kill $!; rmdir $group" EXIT
"$python" "$machine" "$folder" >"$folder/../after.json"
"""
    folder, token = tmp_path / "folder", f"token{os.getpid()}"
    folder.mkdir()
    subprocess.run(
        [
            *("unshare", "--mount", "--net", "bash", "-c", changes),
            # The last word stands for the token of an engine that is at work, which has
            # processes that name it; twice the word is named by none.
            *("bash", sys.executable, str(MACHINE), str(folder), token),
        ],
        check=True,
        timeout=120,
    )
    before, after = (
        json.loads((tmp_path / f"{each}.json").read_text()) for each in ("before", "after")
    )
    told = difference(before, after)
    names = [line for line in told if line.startswith("names: came /mnt/")]
    assert names == [f"names: came /mnt/vgpu-testbed-{token}{token}"]
    for what in ("sysctls", "links", "nft", "mounts", "etc", "groups", "processes"):
        assert any(line.startswith(f"{what}: came") for line in told), (what, told)
