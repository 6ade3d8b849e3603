"""The limits in real pods: whose cap a container gets, and whether it can leave it.

Two cards of different sizes, so that the same percentage is a different cap on each.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import uuid
from pathlib import Path

import pytest
import yaml

from testbed.card import profiles
from testbed.lab.cluster.protocol import CardSpec, ClusterSpec
from testbed.lab.deploy import cards as monitored
from testbed.lab.deploy import enforcement, ledger
from testbed.lab.deploy.common import SELECTOR
from testbed.lab.kube import ApiError
from testbed.lab.progress import ConsoleProgress, QuietProgress
from testbed.lab.testbed import Testbed
from testbed.lab.wait import wait_until
from testbed.stack import names
from testbed.stack.codec import decode_pod_shares, decode_register
from testbed.units import MIB

from .places import GONE_S
from .test_allocation import create_in_one_request, phase, wait_phase

README = Path(__file__).parents[2] / "README.md"
PROBE = (Path(__file__).parent / "container_probe.py").read_text()
LARGE, SMALL = profiles.load("a100-80gb"), profiles.load("a100-40gb")
#: What programs can have of the cards: the driver keeps some for itself.
LARGE_MIB, SMALL_MIB = (
    (card.figures["memory_bytes"].value - card.figures["reserved_bytes"].value) // MIB
    for card in (LARGE, SMALL)
)
CONTEXT_MIB = LARGE.figures["context_bytes"].value // MIB
#: Later than any clock: who asks for what came after that gets the time alone.
LATER = 1e12
#: Enough to show that nothing holds: the control's programs stop here, MiB above the cap.
ABOVE_MIB = 2048


# --- the testbed -------------------------------------------------------------------


@pytest.fixture(scope="module")
def lab(request, tmp_path_factory):
    """A testbed with a card of 80 and one of 40 GiB."""
    found = Testbed(f"c{os.getpid()}")
    progress = ConsoleProgress(stream=sys.__stderr__)
    spec = ClusterSpec(cards=(CardSpec(profile="a100-80gb"), CardSpec(profile="a100-40gb")))
    before = request.session.testsfailed
    try:
        try:
            found.ensure(spec, progress)
            yield Lab(found)
        finally:
            if request.session.testsfailed > before:
                folder = found.bundle(tmp_path_factory.mktemp("bundle"))
                print(f"\nbundle: {folder}", file=sys.stderr)
    finally:
        found.down(progress)


@pytest.fixture
def space(lab):
    """A namespace of the test's own."""
    with lab.namespace() as name:
        yield name


@pytest.fixture(scope="module")
def sleeper(lab):
    """A pod with 4 GiB in which nothing runs: programs come by exec."""
    with lab.namespace() as name:
        main = lab.container("main", "sleep", "3600", gpu=mib(4096))
        lab.create(name, "sleeper", main, pin=lab.large)
        lab.running(name, "sleeper")
        yield Inside(lab, name, "sleeper")


class Lab:
    """What the tests do with the testbed."""

    def __init__(self, testbed):
        self.testbed = testbed
        self.kube = testbed.kube
        [node] = self.kube.list("v1", "Node")
        found = decode_register(node["metadata"]["annotations"][names.NODE_REGISTER])
        self.large, self.small = (card.uuid for card in found)
        self.image = testbed.info().pytorch_image

    @contextlib.contextmanager
    def namespace(self):
        name = f"e2e-{uuid.uuid4().hex[:8]}"
        kube = self.kube
        # Pods here set the library's variables themselves: it must hold against them.
        labels = {names.OWN_ENVIRONMENT_LABEL: names.OWN_ENVIRONMENT_ALLOWED}
        metadata = {"name": name, "labels": labels}
        kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        try:
            yield name
        finally:
            pods = [pod["metadata"] for pod in kube.list("v1", "Pod", name)]
            for pod in pods:
                kube.delete("v1", "Pod", pod["name"], name, grace_s=0)
            for pod in pods:
                kube.wait_gone("v1", "Pod", pod["name"], name, timeout_s=GONE_S)
            # The ledger hears of it a moment later; the next test counts from there.
            uids = {pod["uid"] for pod in pods}
            wait_until(
                "the ledger has everything back",
                lambda: uids & ledger(kube)["pods"].keys(),
                ready=lambda left: not left,
                timeout_s=GONE_S,
            )
            kube.delete("v1", "Namespace", name)

    def container(self, name, *command, gpu=None, env=None, **more):
        return {
            "name": name,
            "image": self.image,
            "imagePullPolicy": "IfNotPresent",
            "command": [*command],
            "env": [{"name": key, "value": value} for key, value in (env or {}).items()],
            "resources": {"limits": gpu or {}},
            **more,
        }

    def manifest(self, namespace, name, *containers, pin="", **spec):
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": namespace,
                "annotations": {names.USE_UUID: pin} if pin else {},
            },
            "spec": {
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 0,
                "automountServiceAccountToken": False,
                "containers": list(containers),
                **spec,
            },
        }

    def create(self, namespace, name, *containers, **spec):
        return self.kube.create(self.manifest(namespace, name, *containers, **spec))

    def running(self, namespace, name):
        found = wait_phase(self.kube, namespace, name, ("Running", "Failed"))
        assert phase(found) == "Running", found["status"]
        return found

    def fact(self, namespace, name, container):
        """Return what the probe in a container has printed."""

        def observe():
            with contextlib.suppress(ApiError):  # not started yet
                return self.kube.logs(namespace, name, container)
            return ""

        text = wait_until(
            f"{namespace}/{name} {container} has printed its fact",
            observe,
            ready=lambda log: log.endswith("}\n"),
            timeout_s=180,
        )
        return json.loads(text.splitlines()[-1])

    def pending(self, namespace, name):
        """Return why a pod is not scheduled."""

        def observe():
            found = self.kube.find("v1", "Pod", name, namespace) or {}
            conditions = found.get("status", {}).get("conditions", [])
            return [c for c in conditions if c["type"] == "PodScheduled"]

        [condition] = wait_until(
            f"{name} is refused",
            observe,
            ready=lambda found: bool(found) and found[0]["status"] == "False",
            timeout_s=120,
        )
        return condition["message"]

    def promised(self, namespace, name):
        """Return the shares of each container, as the annotation has them."""
        found = self.kube.get("v1", "Pod", name, namespace)
        return decode_pod_shares(found["metadata"]["annotations"][names.POD_ALLOCATED])

    def used(self, card):
        """Return the slots and MiB of a card that the extender's ledger gives away."""
        nodes = ledger(self.kube)["nodes"].values()
        [found] = [one for node in nodes for one in node["cards"] if one["uuid"] == card]
        return found["slots"]["used"], found["mem_mib"]["used"]

    def wait_used(self, card, slots, mib):
        """Wait until the ledger gives away so much of a card: it follows pods by watching."""
        wait_until(
            f"the ledger gives away {slots} slots and {mib} MiB of {card}",
            lambda: self.used(card),
            ready=(slots, mib).__eq__,
            timeout_s=120,
        )

    def held(self, uid, container=None):
        """Return the MiB that the cards count for a pod in the monitor's latest look.

        Which is the latest is the node's clock to say; ours may be another.
        """
        now = monitored(self.kube, LATER).now
        reading = wait_until(
            "the monitor has looked",
            lambda: monitored(self.kube, now),
            ready=lambda found: found.samples,
            timeout_s=120,
        )
        latest = max(sample.time for sample in reading.samples)
        return sum(
            sample.bytes // MIB
            for sample in reading.samples
            if sample.time == latest
            and sample.pod_uid == uid
            and container in (None, sample.container)
        )


class Inside:
    """Runs the probe in a running container."""

    def __init__(self, lab, namespace, pod):
        self.lab, self.namespace, self.pod = lab, namespace, pod
        self.uid = lab.kube.get("v1", "Pod", pod, namespace)["metadata"]["uid"]

    def run(self, *command, container=None):
        found = self.lab.kube.exec(self.namespace, self.pod, command, container=container)
        assert found.rc == 0, found
        return found.stdout

    def probe(self, *arguments, before=(), container=None):
        command = [*before, "/usr/bin/python3", "-c", PROBE, *map(str, arguments)]
        return json.loads(self.run(*command, container=container))

    @contextlib.contextmanager
    def holding(self, most):
        """Let another process hold memory; it dies by SIGKILL."""
        script = 'python3 -c "$0" hold 0 "$1" >/tmp/held 2>&1 & echo $!'
        pid = self.run("sh", "-c", script, PROBE, str(most)).strip()
        try:
            wait = "until grep -q '}$' /tmp/held; do sleep 0.05; done; cat /tmp/held; rm /tmp/held"
            yield json.loads(self.run("sh", "-c", wait))
        finally:
            # Until it has ended; nobody here takes it, so it stays as a zombie.
            alive = f"grep -qs '^State:.[^ZX]' /proc/{pid}/status"
            self.run("sh", "-c", f"kill -9 {pid}; while {alive}; do sleep 0.05; done")


def mib(amount, count=1):
    return {names.RESOURCE_COUNT: str(count), names.RESOURCE_MEMORY: str(amount)}


def probing(*arguments):
    return ("python3", "-u", "-c", PROBE, *map(str, arguments))


def is_capped(fact, cap):
    """The fill ended by an out-of-memory error within 2 MiB below the cap, context included."""
    assert fact["refused"] == 2, fact
    assert cap - 2 <= fact["allocated"] + CONTEXT_MIB <= cap, fact
    assert fact["before"]["total"] == fact["after"]["total"] == cap, fact
    return True


def is_not_capped(fact, cap):
    assert fact["allocated"] > cap and fact["refused"] == 0, fact
    assert not fact["library"], fact
    return True


# --- whose cap ---------------------------------------------------------------------


def test_two_containers_of_a_pod_have_a_cap_each(lab, space):
    """C6"""
    caps = {"one": 3000, "two": 5000}
    made = lab.create(
        space,
        "pod",
        *(lab.container(n, *probing("hold", 0, 99999), gpu=mib(cap)) for n, cap in caps.items()),
        pin=lab.large,
    )
    uid = made["metadata"]["uid"]
    for name, cap in caps.items():
        fact = lab.fact(space, "pod", name)
        assert fact["env"][f"{names.ENV_MEMORY_LIMIT}_0"] == f"{cap}m"
        assert is_capped(fact, cap)
    assert [[s.mem_mib for s in shares] for shares in lab.promised(space, "pod")] == [
        [3000],
        [5000],
    ]
    for name, cap in caps.items():
        counted = wait_until(
            f"the card counts {name}",
            lambda name=name: lab.held(uid, name),
            ready=lambda found, cap=cap: found >= cap - 2,
            timeout_s=120,
        )
        assert counted <= cap


def test_init_container_app_and_a_container_without_a_card(lab, space):
    """C1, C3"""
    before = lab.used(lab.large)
    lab.create(
        space,
        "pod",
        lab.container("plain", *probing("see"), env={names.ENV_VISIBLE: "all"}),
        lab.container("app", *probing("hold", 0, 99999), gpu=mib(10240)),
        initContainers=[lab.container("init", *probing("fill", 0, 99999), gpu=mib(20480))],
        pin=lab.large,
    )
    for name, cap in (("init", 20480), ("app", 10240)):
        fact = lab.fact(space, "pod", name)
        assert fact["env"][f"{names.ENV_MEMORY_LIMIT}_0"] == f"{cap}m"
        assert is_capped(fact, cap)
    plain = lab.fact(space, "pod", "plain")
    assert plain["init"] is None and plain["cards"] == [] and not plain["library"]
    assert plain["env"] == {names.ENV_VISIBLE: "all"}
    # What the init container had more is given back when it has ended.
    lab.wait_used(lab.large, before[0] + 1, before[1] + 10240)


def test_a_sidecar_in_one_pid_namespace_has_its_own_cap(lab, space):
    before = lab.used(lab.large)
    lab.create(
        space,
        "pod",
        lab.container("app", *probing("hold", 0, 99999), gpu=mib(5000)),
        initContainers=[
            lab.container("side", *probing("hold", 0, 99999), gpu=mib(3000), restartPolicy="Always")
        ],
        shareProcessNamespace=True,
        pin=lab.large,
    )
    assert is_capped(lab.fact(space, "pod", "side"), 3000)
    assert is_capped(lab.fact(space, "pod", "app"), 5000)
    lab.wait_used(lab.large, before[0] + 2, before[1] + 8000)


def test_two_cards_keep_their_order_and_their_own_caps(lab, space):
    quarter = {names.RESOURCE_COUNT: "2", names.RESOURCE_MEMORY_PERCENTAGE: "25"}
    made = lab.create(space, "pod", lab.container("main", "sleep", "3600", gpu=quarter))
    lab.running(space, "pod")
    inside = Inside(lab, space, "pod")
    caps = {lab.large: LARGE_MIB // 4, lab.small: SMALL_MIB // 4}
    seen = [{"uuid": card, "mib": cap} for card, cap in caps.items()]
    assert inside.uid == made["metadata"]["uid"]
    assert [{"uuid": s.uuid, "mib": s.mem_mib} for s in lab.promised(space, "pod")[0]] == seen

    fact = inside.probe("see")
    assert fact["cards"] == seen
    limits = [fact["env"][f"{names.ENV_MEMORY_LIMIT}_{i}"] for i in range(2)]
    assert limits == [f"{cap}m" for cap in caps.values()]
    for visible, order in (
        (None, seen),
        ("0,1", seen),
        ("1,0", seen[::-1]),
        ("1", seen[1:]),
        (lab.small, seen[1:]),
        (f"{lab.small[:12]},{lab.large[:12]}", seen[::-1]),
    ):
        before = ("env", f"CUDA_VISIBLE_DEVICES={visible}") if visible else ()
        for card, wanted in enumerate(order):
            fact = inside.probe("fill", card, 99999, before=before)
            assert fact["cards"] == order
            assert is_capped(fact, wanted["mib"])


def test_a_percentage_is_of_the_card_and_cores_alone_give_the_whole_memory(lab, space):
    percent = {names.RESOURCE_MEMORY_PERCENTAGE: "25"}
    cores = {names.RESOURCE_COUNT: "1", names.RESOURCE_CORES: "30"}
    for name, gpu, pin in (("percent", percent, lab.large), ("cores", cores, lab.small)):
        lab.create(space, name, lab.container("main", *probing("fill", 0, 99999), gpu=gpu), pin=pin)
    assert is_capped(lab.fact(space, "percent", "main"), LARGE_MIB // 4)
    assert is_capped(lab.fact(space, "cores", "main"), SMALL_MIB)


def test_two_halves_of_a_card_reach_their_caps_at_the_same_time(lab, space):
    half = {names.RESOURCE_MEMORY_PERCENTAGE: "50"}
    for name in ("one", "two"):
        main = lab.container("main", *probing("hold", 0, 99999), gpu=half)
        lab.create(space, name, main, pin=lab.small)
    for name in ("one", "two"):
        assert is_capped(lab.fact(space, name, "main"), SMALL_MIB // 2)


# --- ways out ----------------------------------------------------------------------


def test_a_container_that_is_started_again_keeps_its_cap(lab, space):
    # Both runs' facts in one log: kubelet may have removed the first container by then.
    script = (
        'python3 -c "$0" fill 0 99999 >> /scratch/facts; test $(wc -l < /scratch/facts) = 2'
        " && cat /scratch/facts"
    )
    lab.create(
        space,
        "pod",
        lab.container(
            "main",
            *("sh", "-c", script, PROBE),
            gpu=mib(3000),
            volumeMounts=[{"name": "scratch", "mountPath": "/scratch"}],
        ),
        restartPolicy="OnFailure",
        volumes=[{"name": "scratch", "emptyDir": {}}],
    )
    found = wait_phase(lab.kube, space, "pod", ("Succeeded", "Failed"))
    assert found["status"]["containerStatuses"][0]["restartCount"] == 1
    facts = [json.loads(line) for line in lab.kube.logs(space, "pod", "main").splitlines()]
    assert len(facts) == 2 and all(is_capped(fact, 3000) for fact in facts)


def test_programs_that_come_without_the_environment_are_capped(sleeper):
    """W8"""
    fact = sleeper.probe("fill", 0, 99999, before=["env", "-i"])
    assert fact["env"] == {}
    assert is_capped(fact, 4096)


HOSTILE = {
    f"{names.ENV_MEMORY_LIMIT}_0": "0m",
    names.ENV_MEMORY_LIMIT: "0",
    names.ENV_SHARED_CACHE: "/tmp/x",
    names.ENV_OVERSUBSCRIBE: "true",
    names.ENV_VISIBLE: "all",
    "LD_PRELOAD": "",
    "LD_LIBRARY_PATH": names.CONTAINER_DRIVER,
}


def test_a_pod_that_sets_the_variables_itself_is_capped(lab, space):
    """Kubelet puts the pod's own variables after those of the plugin."""
    gpu = mib(3000)
    lab.create(
        space,
        "pod",
        lab.container("main", *probing("fill", 0, 99999), gpu=gpu, env=HOSTILE),
        pin=lab.large,
    )
    fact = lab.fact(space, "pod", "main")
    assert fact["env"].items() >= HOSTILE.items()
    assert fact["cards"] == [{"uuid": lab.large, "mib": 3000}]
    assert is_capped(fact, 3000)


def test_two_processes_share_one_cap_and_a_killed_one_gives_back(lab, sleeper):
    """D2, D3"""
    with sleeper.holding(2048) as first:
        assert first["allocated"] == 2048 and first["refused"] == 0
        second = sleeper.probe("fill", 0, 99999)
        assert second["before"]["free"] == 4096 - 2048 - 2 * CONTEXT_MIB
        assert second["refused"] == 2
        both = first["allocated"] + second["allocated"] + 2 * CONTEXT_MIB
        assert 4096 - 2 <= both <= 4096
        assert lab.held(sleeper.uid) <= 4096
    assert is_capped(sleeper.probe("fill", 0, 99999), 4096)


RACE = """
import ctypes, subprocess, sys, time
if sys.argv[1:] == ["child"]:
    cuda, it = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint64()
    context = ctypes.c_void_p()
    assert not cuda.cuInit(0) and not cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    assert not cuda.cuCtxSetCurrent(context)
    print("ready", flush=True)
    moment = float(sys.stdin.readline())
    while time.monotonic() < moment: pass
    print(cuda.cuMemAlloc_v2(ctypes.byref(it), ctypes.c_size_t(2000 << 20)), flush=True)
    sys.stdin.readline()
    sys.exit()
pipe = subprocess.PIPE
command = [sys.executable, "-c", sys.argv[1], "child"]
for _ in range(10):
    both = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(2)]
    assert [one.stdout.readline() for one in both] == ["ready\\n"] * 2
    moment = time.monotonic() + 0.02
    for one in both:
        print(moment, file=one.stdin, flush=True)
    print(sorted(int(one.stdout.readline()) for one in both))
    for one in both:
        one.communicate()
"""


def test_two_processes_at_the_same_instant_never_pass_the_cap_together(sleeper):
    """D2: 4096 MiB have room for two contexts and one of the allocations."""
    shown = sleeper.run("/usr/bin/python3", "-c", RACE, RACE)
    assert shown.splitlines() == ["[0, 2]"] * 10


LOCKED = {
    "runAsUser": 1000,
    "runAsGroup": 1000,
    "runAsNonRoot": True,
    "readOnlyRootFilesystem": True,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
}


def test_programs_of_another_user_are_capped(lab, space, sleeper):
    """D21"""
    assert lab.testbed.cluster.status().id_range
    lab.create(
        space,
        "pod",
        lab.container("main", *probing("fill", 0, 99999), gpu=mib(3000), securityContext=LOCKED),
    )
    fact = lab.fact(space, "pod", "main")
    assert fact["uid"] == 1000
    assert is_capped(fact, 3000)
    # Two users in one container share one cap.
    with sleeper.holding(1024):
        fact = sleeper.probe("fill", 0, 99999, before=["setpriv", "--reuid=1000", "--clear-groups"])
        assert fact["uid"] == 1000 and fact["refused"] == 2
        assert 4096 - 2 <= fact["allocated"] + 1024 + 2 * CONTEXT_MIB <= 4096


def test_a_container_that_asks_for_no_card_gets_none(lab, space):
    lab.create(space, "pod", lab.container("main", *probing("see"), env={names.ENV_VISIBLE: "all"}))
    fact = lab.fact(space, "pod", "main")
    assert fact["cards"] == [] and fact["init"] is None and not fact["library"]


TORCH = """
import json, torch
blocks = []
try:
    while True:
        blocks.append(torch.empty(1 << 28, dtype=torch.uint8, device="cuda"))
except torch.cuda.OutOfMemoryError as error:
    print(json.dumps({"text": str(error), "blocks": len(blocks)}))
"""


def test_torch_says_how_much_there_is(sleeper):
    found = json.loads(sleeper.run("python3", "-c", TORCH))
    assert found["blocks"] == (4096 - CONTEXT_MIB) // 256
    assert "Tried to allocate 256.00 MiB. GPU 0 has a total capacity of 4.00 GiB" in found["text"]
    assert "this process has" in found["text"], found


def test_the_pod_of_the_readme_runs_as_it_says(lab, space):
    text = README.read_text()
    [block] = re.findall(r"```yaml\n(# pod\.yaml.*?)```", text, re.DOTALL)
    pod = yaml.safe_load(block)
    pod["spec"]["terminationGracePeriodSeconds"] = 0
    lab.kube.create({**pod, "metadata": {**pod["metadata"], "namespace": space}})
    done = wait_phase(lab.kube, space, "mine", ("Succeeded", "Failed"))
    log = lab.kube.logs(space, "mine", "main").strip()
    assert phase(done) == "Succeeded", log
    shown = re.search(r"`testbed kubectl logs mine` shows `(\S+ \S+) (\d+ MiB)`", text)
    # Which of the two cards it gets is the scheduler's choice; its name is the card's.
    assert shown is not None and log.startswith("NVIDIA A100-SXM4-") and log.endswith(shown[2])


# --- admission and placement -------------------------------------------------------


def test_a_privileged_container_is_refused_beside_one_with_a_card(lab, space):
    """W1"""
    privileged = lab.container("nosy", "true", securityContext={"privileged": True})
    main = lab.container("main", "true", gpu=mib(1000))
    for members in (
        {"containers": [privileged, main]},
        {"containers": [main], "initContainers": [privileged]},
    ):
        with pytest.raises(ApiError) as caught:
            lab.create(space, "pod", **members)
        assert "'nosy' is privileged" in caught.value.text()


def test_a_volume_over_the_library_is_refused(lab, space):
    """Kubelet mounts a pod's volumes after what the plugin mounts."""
    for path in (names.CONTAINER_PRELOAD, names.CONTAINER_ROOT):
        mount = {"name": "scratch", "mountPath": path}
        main = lab.container("main", "true", gpu=mib(1000), volumeMounts=[mount])
        with pytest.raises(ApiError) as caught:
            lab.create(space, "pod", main, volumes=[{"name": "scratch", "emptyDir": {}}])
        assert f"'main' mounts a volume at {path}" in caught.value.text()


def test_debug_containers_get_no_card_and_no_privilege(lab, sleeper):
    """W9"""

    def debug(name, **more):
        added = lab.container(name, *probing("see"), **more)
        del added["resources"]
        body = {"spec": {"ephemeralContainers": [{**added, "targetContainerName": "main"}]}}
        lab.kube.patch(
            "v1",
            "Pod",
            sleeper.pod,
            body,
            sleeper.namespace,
            strategy="strategic",
            subresource="ephemeralcontainers",
        )

    with pytest.raises(ApiError) as caught:
        debug("nosy", securityContext={"privileged": True})
    assert "'nosy' is privileged" in caught.value.text()
    debug("harmless")
    fact = lab.fact(sleeper.namespace, sleeper.pod, "harmless")
    assert fact["cards"] == [] and fact["init"] is None


def test_the_eleventh_share_of_a_card_waits(lab, space):
    """R7"""
    share = lab.container("main", "sleep", "3600", gpu=mib(100))
    pods = [lab.manifest(space, f"p{i}", share, pin=lab.small) for i in range(10)]
    create_in_one_request(lab.testbed, pods)
    for i in range(10):
        lab.running(space, f"p{i}")
    lab.wait_used(lab.small, 10, 1000)
    lab.create(space, "eleventh", share, pin=lab.small)
    assert "CardTimeSlicingExhausted" in lab.pending(space, "eleventh")
    lab.kube.delete("v1", "Pod", "p3", space, grace_s=0)
    lab.running(space, "eleventh")


def test_of_three_that_come_at_once_the_third_waits(lab, space):
    """R9"""
    share = lab.container("main", "sleep", "3600", gpu=mib(30720))
    pods = [lab.manifest(space, f"p{i}", share, pin=lab.large) for i in range(3)]
    create_in_one_request(lab.testbed, pods)

    def phases():
        return sorted(phase(pod) for pod in lab.kube.list("v1", "Pod", space))

    wait_until(
        "two run",
        phases,
        ready=lambda found: found.count("Running") == 2,
        timeout_s=180,
    )
    [waiting] = [p for p in lab.kube.list("v1", "Pod", space) if phase(p) == "Pending"]
    assert "CardInsufficientMemory" in lab.pending(space, waiting["metadata"]["name"])
    assert phases() == ["Pending", "Running", "Running"]
    assert lab.used(lab.large)[1] >= 61440


# --- the end -----------------------------------------------------------------------


def test_a_deleted_pod_gives_everything_back(lab, space):
    before = lab.used(lab.large)
    made = lab.create(
        space,
        "pod",
        lab.container("main", *probing("hold", 0, 99999), gpu=mib(8192)),
        pin=lab.large,
    )
    uid = made["metadata"]["uid"]
    assert is_capped(lab.fact(space, "pod", "main"), 8192)
    lab.wait_used(lab.large, before[0] + 1, before[1] + 8192)
    wait_until(
        "the card counts it", lambda: lab.held(uid), ready=lambda n: n >= 8190, timeout_s=120
    )
    lab.kube.delete("v1", "Pod", "pod", space)

    def left():
        return lab.held(uid), lab.used(lab.large), uid in ledger(lab.kube)["pods"]

    wait_until(
        "card and ledger have everything back",
        left,
        ready=lambda found: found == (0, before, False),
        timeout_s=120,
    )


def test_no_container_sees_the_home_folder(lab, sleeper):
    canary = Path.home() / f"testbed-canary-{uuid.uuid4().hex[:8]}"
    canary.write_text("a secret of the user")
    canary.chmod(0o644)
    find = f"cat {canary}; find / -path /proc -prune -o -name {canary.name} -print; echo end"
    try:
        looked = [sleeper.run("sh", "-c", f"({find}) 2>/dev/null")]
        for pod in lab.kube.list("v1", "Pod", names.NAMESPACE, labels=SELECTOR):
            for container in pod["spec"]["containers"]:
                found = lab.kube.exec(
                    names.NAMESPACE,
                    pod["metadata"]["name"],
                    ["sh", "-c", f"({find}) 2>/dev/null"],
                    container=container["name"],
                )
                if "executable file not found" not in found.stderr:  # kube-scheduler's image
                    looked.append(found.stdout)
    finally:
        canary.unlink()
    # Ours, the extender, plugin, monitor and both webhooks.
    assert len(looked) == 6 and set(looked) == {"end\n"}


# --- the control -------------------------------------------------------------------


def test_without_the_library_nothing_holds(lab, space):
    """Each way above, with enforcement off: the same observations exceed the caps."""
    most = 3000 + ABOVE_MIB
    gpu = mib(3000)
    fill = probing("fill", 0, most)
    both = {names.RESOURCE_COUNT: "2", names.RESOURCE_MEMORY_PERCENTAGE: "5"}
    with enforcement(lab.kube, "off", QuietProgress()):
        lab.create(
            space,
            "many",
            lab.container("plain", *fill, gpu=gpu),
            lab.container("hostile", *fill, gpu=gpu, env=HOSTILE),
            lab.container("user", *fill, gpu=gpu, securityContext=LOCKED),
            initContainers=[lab.container("init", *fill, gpu=gpu)],
            pin=lab.large,
        )
        lab.create(space, "idle", lab.container("main", "sleep", "3600", gpu=gpu), pin=lab.large)
        lab.create(space, "cards", lab.container("main", "sleep", "3600", gpu=both))
        for name in ("init", "plain", "hostile", "user"):
            assert is_not_capped(lab.fact(space, "many", name), 3000)
        lab.running(space, "idle")
        idle = Inside(lab, space, "idle")
        assert is_not_capped(idle.probe("fill", 0, most, before=["env", "-i"]), 3000)
        with idle.holding(2048) as first:
            second = idle.probe("fill", 0, 2048)
            assert first["allocated"] + second["allocated"] == 4096
        lab.running(space, "cards")
        cards = Inside(lab, space, "cards")
        for index in range(2):
            before = ["env", "CUDA_VISIBLE_DEVICES=1,0"]
            assert is_not_capped(cards.probe("fill", index, 4096 + ABOVE_MIB, before=before), 4096)
