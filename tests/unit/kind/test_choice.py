"""Which engine a kind cluster runs in, and what ``auto`` makes of it."""

from __future__ import annotations

import pytest

from testbed.errors import ClusterError, InputError, MissingTool
from testbed.lab.cluster.kind import auto, choice
from testbed.lab.cluster.kind.choice import OWN_VARIABLE, Choice, Machine
from testbed.lab.cluster.kind.engine import VARIABLE, Engine, rootless

DOCKER = {"ServerVersion": "28.1", "DefaultRuntime": "runc", "Runtimes": {"runc": {"path": "runc"}}}
FRONT = {
    "DefaultRuntime": "vgpu",
    "Runtimes": {"vgpu": {"path": "/cache/native/lib/vgpu-oci-front"}},
}
ROOTLESS = DOCKER | {"SecurityOptions": ["name=seccomp,profile=builtin", "name=rootless"]}


def machine(docker=None, *, podman=None, root=True, fetchable=True, capable=True, installed=None):
    infos = {"docker": docker, "podman": podman}
    there = frozenset(name for name, info in infos.items() if info is not None)
    return Machine(
        info=lambda program: infos[program],
        root=root,
        installed=there if installed is None else frozenset(installed),
        fetchable=fetchable,
        capable=capable,
    )


def test_an_engine_that_answers_is_taken():
    found = choice.choose({}, machine(DOCKER))
    assert found.engine == Engine.there("docker", {})
    assert found.why == "the engine that is there (version 28.1)"


@pytest.mark.parametrize(
    ("environ", "there", "program", "why"),
    [
        ({}, machine(), "docker", "no Docker answers"),
        ({VARIABLE: "podman"}, machine(DOCKER, podman={}), "podman", "change its network"),
        ({OWN_VARIABLE: "own"}, machine(DOCKER), "docker", "VGPU_TESTBED_ENGINE=own"),
        ({}, machine(DOCKER, capable=False), "docker", "lacks the capability SYS_RESOURCE"),
        ({}, machine(ROOTLESS), "docker", "runs rootless"),
        ({"DOCKER_HOST": "ssh://there"}, machine(DOCKER), "docker", "another machine"),
    ],
)
def test_else_root_starts_an_own_one(environ, there, program, why):
    found = choice.choose(environ, there)
    assert (found.engine, found.program) == (None, program)
    assert why in found.why


def test_who_may_not_ask_docker_is_told_how_to():
    with pytest.raises(ClusterError) as caught:
        choice.choose({}, machine(root=False))
    assert "usermod -aG docker" in caught.value.hint


def test_the_engine_stays_the_one_that_was_taken(monkeypatch):
    """Later commands need the name only, wherever their environment leads."""
    found = choice.choose({"DOCKER_HOST": "unix:///own.sock"}, machine(DOCKER)).engine
    assert found is not None
    monkeypatch.setenv("DOCKER_HOST", "unix:///other.sock")
    monkeypatch.setenv("DOCKER_CONTEXT", "other")
    assert found.environ()["DOCKER_HOST"] == "unix:///own.sock"
    assert "DOCKER_CONTEXT" not in found.environ()
    plain = Engine(program="docker", environment={"PATH": ""})  # a record of earlier versions
    assert plain.environ()["DOCKER_CONTEXT"] == "other"


def test_a_front_before_the_runtime_makes_up_for_the_capability():
    assert choice.choose({}, machine(FRONT, capable=False)).engine is not None


def test_podman_that_is_there_is_taken_if_it_is_asked_for():
    info = {"version": {"Version": "4.3.1"}, "host": {"security": {"rootless": False}}}
    environ = {VARIABLE: "podman", OWN_VARIABLE: "there"}
    found = choice.choose(environ, machine(podman=info))
    assert found.engine == Engine.there("podman", {})
    assert "4.3.1" in found.why


@pytest.mark.parametrize(
    ("environ", "there", "error", "told"),
    [
        ({VARIABLE: "nerdctl"}, machine(DOCKER), InputError, "nerdctl"),
        ({OWN_VARIABLE: "mine"}, machine(DOCKER), InputError, "mine"),
        ({OWN_VARIABLE: "there"}, machine(), ClusterError, "no Docker answers"),
        (
            {OWN_VARIABLE: "there", "DOCKER_HOST": "tcp://there:2375"},
            machine(DOCKER),
            ClusterError,
            "DOCKER_HOST is another machine",
        ),
        ({}, machine(root=False), ClusterError, "only root can start one"),
        ({}, machine(fetchable=False), MissingTool, "no Debian packages"),
        ({}, machine(ROOTLESS, root=False), ClusterError, "runs rootless"),
    ],
)
def test_where_none_will_do(environ, there, error, told):
    with pytest.raises(error, match=told) as caught:
        choice.choose(environ, there)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("info", "found"),
    [
        (DOCKER, False),
        (ROOTLESS, True),
        ({"host": {"security": {"rootless": True}}}, True),
        ({"host": {"security": {"rootless": False}}}, False),
        ({}, False),
    ],
)
def test_rootless_engines_are_known_by_what_they_say(info, found):
    assert rootless(info) is found


@pytest.mark.parametrize(
    ("status", "found"),
    [
        ("Name:\tx\nCapBnd:\t000001fffeffffff\n", False),
        ("CapBnd:\t000001ffffffffff\n", True),
        ("Name:\tx\n", True),
    ],
)
def test_the_capability_is_read_from_the_bounding_set(status, found):
    assert choice.capable(status) is found


# --- auto ---------------------------------------------------------------------------------


def taken(there):
    return lambda environ: choice.choose(environ, there)


def test_auto_is_kind_where_engine_and_image_are_at_hand():
    kind, why = auto.choose({}, look=taken(machine(DOCKER)), images=lambda engine: "with an image")
    assert kind == "kind"
    assert "version 28.1" in why and "with an image" in why and "--provider" in why


@pytest.mark.parametrize(
    ("there", "image", "told"),
    [
        (machine(DOCKER), "", "has no node image"),
        (machine(), "with an image", "no Docker answers"),
        (machine(root=False), "with an image", "no Docker answers"),
        (machine(DOCKER, capable=False), "with an image", "SYS_RESOURCE"),
    ],
)
def test_auto_is_process_else_and_says_why(there, image, told):
    kind, why = auto.choose({}, look=taken(there), images=lambda engine: image)
    assert kind == "process"
    assert told in why and "--provider" in why and "\n" not in why


def test_auto_asks_for_no_image_where_no_engine_answers():
    def image(engine):
        raise AssertionError("asked")

    own = Choice(program="docker", engine=None, why="an own Docker: no Docker answers")
    assert auto.choose({}, look=lambda environ: own, images=image)[0] == "process"


def test_auto_does_not_hide_a_mistyped_wish():
    with pytest.raises(InputError):
        auto.choose({VARIABLE: "doker"}, look=taken(machine()))
