"""The process cluster itself: real programs, small images, as root and as an ordinary user."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from testbed.lab import cache
from testbed.lab.cluster.process import Parts, ProcessCluster, identity, launch, processes
from testbed.lab.images import archive, native_folder, rootfs
from testbed.lab.progress import ConsoleProgress

DRIVER = Path(__file__).with_name("process_driver.py")
USER = 54321  # no passwd entry
UP_S = 120
SYSCTLS = ("vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops", "net/ipv4/ip_forward")
IMAGE = "testbed/e2e:1"

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="drops rights itself: needs root"),
    pytest.mark.timeout(900),
]


# --- set-up ------------------------------------------------------------------------


@pytest.fixture(scope="session")
def material(tmp_path_factory):
    """The product's programs and two small images, readable for every user."""
    programs = Parts().programs(ConsoleProgress(sys.__stderr__))
    folder = Path(tempfile.mkdtemp(prefix="process-e2e-"))
    folder.chmod(0o755)
    try:
        shutil.copytree(programs.binaries, folder / "bin", symlinks=True)
        shutil.copy(programs.front, folder / "front")
        shutil.copytree(launch.PROGRAMS, folder / "inside")
        pause = archive.Entry(
            name="pause",
            mode=0o755,
            data=(native_folder(ConsoleProgress(sys.__stderr__)) / "vgpu-pause").read_bytes(),
        )
        archive.write(
            folder / "pause.tar",
            "registry.k8s.io/pause:3.10.2",
            archive.layer([pause]),
            archive.Settings(entrypoint=["/pause"]),
        )
        archive.write(
            folder / "test.tar",
            IMAGE,
            archive.layer(rootfs.entries()),
            archive.Settings(env=rootfs.env()),
        )
        for path in folder.rglob("*"):
            if not path.is_symlink():
                path.chmod(path.stat().st_mode | 0o444 | (0o111 if path.is_dir() else 0))
        yield folder, programs
    finally:
        shutil.rmtree(folder)


@dataclass
class Lab:
    """One testbed of a test, driven as its owner would."""

    name: str
    uid: int
    home: Path
    material: tuple
    nodes: int = 1
    port: int = 0
    images: list = field(default_factory=list)

    def start(self, command, **changes):
        """Start a command of the testbed in a process of its own."""
        folder, programs = self.material
        lent = [[str(each.source), each.destination] for each in rootfs.lent()]
        options = {
            "uid": self.uid,
            "name": self.name,
            "nodes": self.nodes,
            "port": self.port,
            "card": "a100-80gb",
            "inside": str(folder / "inside"),
            "programs": {
                "binaries": str(folder / "bin" if self.uid else programs.binaries),
                "front": str(folder / "front" if self.uid else programs.front),
                "runc": str(programs.runc),
                "cni": str(programs.cni),
            },
            "images": [
                {
                    "reference": "registry.k8s.io/pause:3.10.2",
                    "archive": str(folder / "pause.tar"),
                    "binds": [],
                },
                {"reference": IMAGE, "archive": str(folder / "test.tar"), "binds": lent},
                *self.images,
            ],
            **changes,
        }
        file = self.home / f"options-{time.monotonic_ns()}.json"
        file.write_text(json.dumps(options))
        home = str(self.home)
        environment = {
            **{key: os.environ[key] for key in ("PATH", "PYTHONPATH") if key in os.environ},
            "HOME": home,
            "XDG_STATE_HOME": f"{home}/state",
            # As root the real cache, in a home that nobody may enter.
            "XDG_CACHE_HOME": f"{home}/cache" if self.uid else str(cache.root().parent),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        return subprocess.Popen(
            [sys.executable, str(DRIVER), str(file), command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )

    def do(self, command, code=0, **changes):
        """Run a command; return its answer."""
        return self.end(self.start(command, **changes), code)

    @staticmethod
    def end(process, code=0):
        try:
            out, err = process.communicate(timeout=UP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            pytest.fail(f"no end:\n{out}\n{err}")
        assert process.returncode == code, f"{out}\n{err}"
        return json.loads(out.splitlines()[-1])

    @property
    def state(self):
        return self.home / "state" / "vgpu-testbed" / self.name

    @property
    def record(self):
        return json.loads((self.state / "cluster.json").read_text())

    def running(self, *names):
        """Return the pids of this cluster's processes that are programs of these names.

        A program is known by the name of its file, a script of Python's by its arguments:
        another may have a program's path among its own, as a shim that starts or
        removes has containerd's. The testbed's own pid 1s first.
        """
        members = {each.pid for each in processes.members(self.record["token"])}
        found = []
        for pid in self.processes():
            process = processes.read(pid)
            if process is None:
                continue
            program, *rest = (Path(each).name for each in process.argv)
            if set(names) <= ({program, *rest} if "python" in program else {program}):
                found.append(pid)
        return sorted(found, key=lambda pid: (pid not in members, pid))

    @property
    def ids(self):
        """The users under which this testbed's processes run."""
        if self.uid:
            return range(self.uid, self.uid + 1)
        base = identity.choose(self.name).uid
        return range(base, base + identity.RANGE)

    def processes(self):
        """Return all processes that run under this testbed's ids.

        Not zombies: when the machine's init takes them is its own affair.
        """
        found = set()
        for path in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if path.name.isdigit() and path.stat().st_uid in self.ids:
                    found.add(int(path.name))
        return {pid for pid in found if processes.read(pid)}

    @property
    def client(self):
        folder, _ = self.material
        return [str(folder / "bin" / "kubectl"), f"--kubeconfig={self.state / 'kubeconfig'}"]

    def kubectl(self, *arguments, code=0, stdin=None):
        """Run the host's kubectl; return its output."""
        done = subprocess.run(
            [*self.client, *arguments],
            capture_output=True,
            text=True,
            input=stdin,
            timeout=UP_S + 60,
            env={"HOME": str(self.home), "PATH": os.environ["PATH"]},
        )
        assert done.returncode == code, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout

    def pod(self, name, script, **spec):
        """Create a pod that runs a shell script."""
        document = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": {"app": name}},
            "spec": {
                "terminationGracePeriodSeconds": 0,
                "restartPolicy": "Never",
                "containers": [{"name": "c", "image": IMAGE, "command": ["sh", "-c", script]}],
                **spec,
            },
        }
        self.kubectl("create", "-f", "-", stdin=json.dumps(document))

    def wait(self, *what, condition="condition=Ready"):
        """Wait until objects are in a condition."""
        self.kubectl("wait", f"--for={condition}", *what, f"--timeout={UP_S}s")

    def run(self, name, script, **spec):
        """Run a script in a pod to its end; return what it printed."""
        self.pod(name, script, **spec)
        self.wait(f"pod/{name}", condition="jsonpath={.status.phase}=Succeeded")
        text = self.kubectl("logs", name)
        self.kubectl("delete", "pod", name)
        return text


@pytest.fixture(scope="module")
def shared(material):
    """One running testbed of root's with one node, for tests that leave it as it was."""
    with making(material) as make:
        found = make("shared")
        found.do("up")
        yield found


@pytest.fixture
def lab(material):
    """Make testbeds that are gone, with all that is theirs, when the test ends."""
    with making(material) as make:
        yield make


@contextlib.contextmanager
def making(material):
    made = []

    def make(name, uid=0, **options):
        home = Path(tempfile.mkdtemp(prefix="process-e2e-home-"))  # mode 0700
        os.chown(home, uid, uid)
        # Of this session: by its name a testbed has its ids, and another has others.
        made.append(Lab(f"{name}{os.getpid()}", uid, home, material, **options))
        return made[-1]

    try:
        yield make
    finally:
        for each in made:
            with contextlib.suppress(Exception):
                each.do("down")
            for pid in each.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            shutil.rmtree(each.home, ignore_errors=True)


def until(condition, deadline_s=UP_S):
    end = time.monotonic() + deadline_s
    while not (found := condition()):
        assert time.monotonic() < end, "the condition did not come true"
        time.sleep(0.05)
    return found


def machine(lab):
    """Return what a testbed could leave behind on this machine.

    Others are at work on it: what comes and goes in shared folders is told apart by whose
    it is, and mounts below /tmp by the testbed's home.
    """
    shown = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True)
    names = {
        folder: sorted(Path(folder).iterdir()) if Path(folder).is_dir() else None
        for folder in (
            *("/run", "/run/cdi", "/run/netns", "/var/lib", "/var/lib/cni", "/var/log", "/mnt"),
            *("/etc", "/etc/cni", "/opt"),
        )
    }
    return {
        "processes": lab.processes(),
        "mounts": sorted(
            line
            for line in Path("/proc/self/mounts").read_text().splitlines()
            if " /tmp/" not in line or str(lab.home) in line
        ),
        "links": sorted(line.split(":")[1].strip() for line in shown.stdout.splitlines()),
        "names": names,
        "of its users": sorted(_names_of(lab.ids)),
        "state": sorted(map(str, (lab.home / "state").rglob("*"))),
        "sysctls": [(Path("/proc/sys") / each).read_text() for each in SYSCTLS],
    }


def _names_of(ids):
    """Return what belongs to users where everybody may put something."""
    for folder in ("/tmp", "/var/tmp", "/dev/shm"):
        for path in Path(folder).iterdir():
            with contextlib.suppress(FileNotFoundError):
                if path.lstat().st_uid in ids:
                    yield str(path)


both = pytest.mark.parametrize("uid", [0, USER], ids=["root", "user"])


# --- the ordinary way --------------------------------------------------------------


@both
def test_up_a_pod_and_down_leave_nothing(lab, uid):
    one = lab("one", uid)
    before = machine(one)
    canary = one.home / "testbed-canary-7f3a"
    canary.write_text("a secret of the user")
    canary.chmod(0o644)

    status = one.do("up")
    assert status["state"] == "up" and status["problems"] == []
    assert status["id_range"] is (uid == 0)
    assert [each["ready"] for each in status["nodes"]] == [True]
    assert status["nodes"][0]["cards"] == [f"GPU-{one.name}-node-1-0"]
    assert stat.S_IMODE((one.state / "kubeconfig").stat().st_mode) == 0o600
    assert machine(one)["sysctls"] == before["sysctls"]

    token = one.record["token"]
    assert one.do("up") == status
    assert one.record["token"] == token

    one.pod("p", "echo printed; exec sleep 1000")
    one.wait("pod/p")
    assert one.kubectl("logs", "p") == "printed\n"
    one.kubectl("exec", "p", "--", "sh", "-c", "exit 5", code=5)
    assert one.kubectl("exec", "-i", "p", "--", "cat", stdin="piped") == "piped"
    find = f"find / -path /proc -prune -o -name {canary.name} -print"
    shown = one.kubectl("exec", "p", "--", "sh", "-c", f"cat {canary}; {find}; echo end")
    assert shown == "end\n"

    one.do("down")
    canary.unlink()
    assert machine(one) == before
    assert one.do("status")["state"] == "absent"
    one.do("down")  # of what is down


def test_users_and_groups_in_pods(shared):
    shown = shared.run(
        "ids",
        "",
        securityContext={"runAsUser": 1000, "runAsGroup": 3000, "fsGroup": 2000},
        volumes=[{"name": "e", "emptyDir": {}}],
        containers=[
            {
                "name": "c",
                "image": IMAGE,
                "command": [
                    *("sh", "-c"),
                    "id -u; id -G; touch /e/x; stat -c %u:%g /e/x; grep Seccomp: /proc/self/status",
                ],
                "volumeMounts": [{"name": "e", "mountPath": "/e"}],
            }
        ],
    )
    assert shown.splitlines() == ["1000", "3000 2000", "1000:2000", "Seccomp:\t2"]


@both
def test_two_nodes_are_one_network(lab, uid):
    one = lab("net", uid, nodes=2)
    one.do("up")
    first, second = (each["name"] for each in one.do("status")["nodes"])
    fetch = (
        "import sys, urllib.request as u; "
        "[print(u.urlopen(a, timeout=20).read().decode()) for a in sys.argv[1:]]"
    )
    one.pod(
        "web",
        "cd /tmp && echo served > index.html && exec python3 -m http.server 8099",
        nodeName=first,
        containers=[
            {
                "name": "c",
                "image": IMAGE,
                "command": [
                    *("sh", "-c"),
                    "cd /tmp && echo served > index.html && exec python3 -m http.server 8099",
                ],
                "readinessProbe": {"tcpSocket": {"port": 8099}, "periodSeconds": 1},
            }
        ],
    )
    one.kubectl("expose", "pod", "web", "--port=80", "--target-port=8099")
    one.wait("pod/web")
    address = one.kubectl("get", "pod", "web", "-o", "jsonpath={.status.podIP}")
    service = one.kubectl("get", "service", "web", "-o", "jsonpath={.spec.clusterIP}")
    # A Service's rules come a moment after its endpoints, on a busy machine a long one.
    script = f"until python3 -c '{fetch}' http://{service}; do sleep 0.2; done"
    for node in (first, second):
        assert "served" in one.run("a", script, nodeName=node)
        direct = f"python3 -c '{fetch}' http://{address}:8099 http://{service} http://{service}"
        assert one.run("b", direct, nodeName=node).split() == ["served"] * 3
    path = "/api/v1/namespaces/default/pods/web:8099/proxy/index.html"
    assert one.kubectl("get", "--raw", path) == "served\n"
    with (
        forwarded(one, "web", 8099) as port,
        urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60) as answer,
    ):
        assert answer.read() == b"served\n"
    # Both nodes' kubelets are verified when their logs are read.
    one.kubectl("get", "--raw", f"/api/v1/nodes/{second}/proxy/healthz")


@contextlib.contextmanager
def forwarded(lab, pod, port):
    process = subprocess.Popen(
        [*lab.client, "port-forward", f"pod/{pod}", f":{port}"],
        stdout=subprocess.PIPE,
        text=True,
        env={"HOME": str(lab.home), "PATH": os.environ["PATH"]},
    )
    with process:
        try:
            line = process.stdout.readline()  # Forwarding from 127.0.0.1:41234 -> 8099
            yield int(line.split("->")[0].rpartition(":")[2])
        finally:
            process.kill()


def test_two_testbeds_at_the_same_time(lab):
    labs = [lab("left"), lab("right", USER)]
    started = [each.start("up") for each in labs]
    ports = {Lab.end(each)["server"] for each in started}
    assert len(ports) == 2
    labs[0].do("down")
    assert labs[1].do("status")["state"] == "up"
    assert labs[1].run("p", "echo on its own") == "on its own\n"


def test_ups_of_one_name_take_turns(lab):
    one = lab("turns")
    started = [one.start("up") for _ in range(3)]
    answers = [Lab.end(each) for each in started]
    assert answers[0] == answers[1] == answers[2]
    assert answers[0]["state"] == "up"
    assert len(processes.members(one.record["token"])) == 4  # outer and node: unshare, init


# --- what goes wrong ---------------------------------------------------------------


def test_a_busy_port_is_refused_before_anything_starts(lab):
    one = lab("busy")
    before = machine(one)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        answer = one.do("up", code=2, port=port)
    assert answer["error"] == "InputError" and str(port) in answer["text"]
    after = machine(one)
    assert not one.state.exists()
    assert {**after, "state": []} == {**before, "state": []}


def test_an_unknown_card_is_refused_before_anything_starts(lab):
    one = lab("card")
    answer = one.do("up", code=2, card="h9000")
    assert answer["error"] == "InputError" and "h9000" in answer["text"]
    assert not one.state.exists()


def test_other_wishes_for_a_running_cluster_are_refused(shared):
    answer = shared.do("up", code=2, nodes=2)
    assert answer["error"] == "InputError" and "testbed down" in answer["text"]
    assert shared.do("status")["state"] == "up"


@both
def test_an_up_that_fails_leaves_only_its_logs(lab, uid):
    one = lab("fails", uid)
    broken = one.home / "broken.tar"
    broken.write_bytes(b"no archive")
    broken.chmod(0o644)
    before = machine(one)
    one.images = [{"reference": "testbed/broken:1", "archive": str(broken), "binds": []}]
    answer = one.do("up", code=2)
    assert answer["error"] == "ClusterError" and "images" in answer["text"]
    after = machine(one)
    assert [path.name for path in one.state.iterdir()] == ["logs"]
    assert {**after, "state": []} == {**before, "state": []}
    assert one.do("status")["state"] == "absent"
    one.images = []
    assert one.do("up")["state"] == "up"
    one.do("down")
    assert not one.state.exists()


@both
def test_an_up_that_is_killed_can_be_repeated(lab, uid):
    one = lab("killed", uid)
    before = machine(one)
    up = one.start("up")
    until(lambda: one.state.joinpath("cluster.json").exists() and one.record["pid"])
    up.kill()
    up.communicate()
    assert one.do("status")["state"] == "broken"
    token = one.record["token"]
    assert one.do("up")["state"] == "up"
    assert one.record["token"] != token and processes.members(token) == []
    one.do("down")
    assert {**machine(one), "state": []} == {**before, "state": []}


def test_an_interrupted_up_cleans_up(lab):
    one = lab("ctrlc")
    before = machine(one)
    up = one.start("up")
    until(lambda: one.state.joinpath("cluster.json").exists() and one.record["pid"])
    up.send_signal(signal.SIGINT)
    up.communicate(timeout=UP_S)
    assert up.returncode not in (0, 2)  # the interruption is told, not swallowed
    assert [path.name for path in one.state.iterdir()] == ["logs"]
    assert {**machine(one), "state": []} == {**before, "state": []}


@both
@pytest.mark.parametrize("victim", ["init", "launcher"])
def test_a_sigkill_of_what_holds_the_namespaces_ends_all(lab, uid, victim):
    one = lab("dead", uid)
    before = machine(one)
    one.do("up")
    record = one.record
    os.kill(record["pid1" if victim == "init" else "pid"], signal.SIGKILL)
    until(lambda: one.processes() == before["processes"])
    assert one.do("status")["state"] == "broken"
    assert one.do("up")["state"] == "up"
    os.kill(one.record["pid1" if victim == "init" else "pid"], signal.SIGKILL)
    one.do("down")  # at once, while the kernel still ends them
    assert {**machine(one), "state": []} == {**before, "state": []}


def test_every_program_comes_back_after_a_sigkill(shared):
    one = shared
    one.pod("stays", "exec sleep 1000", restartPolicy="Always")
    one.wait("pod/stays")
    server = one.do("status")["server"]
    victims = [
        *("relay.py", "kubelet", "containerd", "kube-proxy", "kube-scheduler"),
        *("kube-controller-manager", "etcd", "kube-apiserver"),
    ]
    for victim in victims:
        (pid,) = one.running(victim)
        before = processes.read(pid)
        os.kill(pid, signal.SIGKILL)
        until(lambda pid=pid, before=before: processes.read(pid) != before)
        until(lambda victim=victim: one.running(victim))
    until(lambda: one.do("status")["state"] == "up")
    assert one.do("status")["server"] == server
    # The pod has not been started anew, and the new kubelet finds it.
    until(lambda: attempt(one.kubectl, "exec", "stays", "--", "echo", "here") == "here\n")
    restarts = "jsonpath={.status.containerStatuses[0].restartCount}"
    assert one.kubectl("get", "pod", "stays", "-o", restarts) == "0"
    assert one.run("another", "echo another") == "another\n"
    one.kubectl("delete", "pod", "stays")


def attempt(call, *arguments):
    try:
        return call(*arguments)
    except AssertionError:
        return None


def test_a_node_that_dies_comes_back(lab):
    one = lab("node", nodes=2)
    one.do("up")
    first, second = (each["name"] for each in one.do("status")["nodes"])
    one.pod("p", "exec sleep 1000", restartPolicy="Always", nodeName=second)
    one.pod("q", "exec sleep 1000", restartPolicy="Always", nodeName=first)
    one.wait("pod/p", "pod/q")
    os.kill(one.running("init.py", f"{second}.json")[0], signal.SIGKILL)
    restarts = "jsonpath={.status.containerStatuses[0].restartCount}"
    until(lambda: one.kubectl("get", "pod", "p", "-o", restarts) == "1")
    one.wait("pod/p")
    until(lambda: one.do("status")["state"] == "up")
    assert one.kubectl("exec", "p", "--", "echo", "back") == "back\n"
    assert one.kubectl("get", "pod", "q", "-o", restarts) == "0"


def test_images_that_are_new_are_added_to_a_running_cluster(shared):
    one = shared
    token = one.record["token"]
    # In the state folder, since that is bound: as the product's lie in the cache.
    added = one.state / "inside" / "added.tar"
    settings = archive.Settings(env=rootfs.env())
    archive.write(added, "testbed/added:2", archive.layer(rootfs.entries()), settings)
    lent = [[str(each.source), each.destination] for each in rootfs.lent()]
    images = [{"reference": "testbed/added:2", "archive": str(added), "binds": lent}]
    assert one.do("up", images=images)["state"] == "up"
    assert one.record["token"] == token
    container = {"name": "c", "image": "testbed/added:2", "command": ["echo", "added"]}
    assert one.run("added", "", containers=[container]) == "added\n"


def test_logs_are_collected_without_secrets(shared, tmp_path, monkeypatch):
    token = "/var/run/secrets/kubernetes.io/serviceaccount/token"
    shared.pod("talks", f"echo a line of the pod; cat {token}; echo; exec sleep 1000")
    shared.wait("pod/talks")
    until(lambda: "eyJ" in shared.kubectl("logs", "talks"))
    monkeypatch.setenv("XDG_STATE_HOME", str(shared.home / "state"))
    ProcessCluster(shared.name).collect_logs(tmp_path)
    shared.kubectl("delete", "pod", "talks")
    names = {path.name for path in tmp_path.rglob("*")}
    assert {"kube-apiserver.log", f"{shared.name}-node-1-kubelet.log", "launch.log"} <= names
    text = "".join(path.read_text() for path in tmp_path.rglob("*") if path.is_file())
    assert "a line of the pod" in text
    assert "PRIVATE KEY" not in text and "eyJ" not in text
