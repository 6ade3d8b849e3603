"""One testbed for the processes of a session: who brings it up, who takes it down."""

import os
import types

import pytest

from testbed.errors import ClusterError, DeployError, InputError
from testbed.lab.cluster.protocol import CardSpec, ClusterSpec, ClusterStatus, NodeStatus
from testbed.lab.progress import QuietProgress
from testbed.lab.pytest_plugin import held, keeper
from testbed.lab.pytest_plugin.settings import Settings

SPEC = ClusterSpec()
SESSION = Settings(process=4711, provider="process")


class World:
    """What testbeds there are, and what was done to them."""

    def __init__(self):
        self.up, self.done, self.error = set(), [], None

    def start(self, name, provider, process, *, keep):
        self.done.append(f"hold {name} {provider}")
        return keeper.Kept(pid=os.getpid(), temporary=name not in self.up and not keep)

    def end(self, pid):
        self.done.append("let go")

    def testbed(self, name, provider=""):
        def ensure(spec, progress):
            self.done.append(f"ensure {name}")
            if self.error:
                raise self.error
            self.up.add(name)

        def down(progress):
            self.done.append(f"down {name}")
            self.up.discard(name)

        def status():
            node = NodeStatus(name="n", ready=True, profiles=(CardSpec(),))
            state = "up" if name in self.up else "absent"
            return ClusterStatus(name=name, provider="process", state=state, nodes=(node,))

        def bundle(folder):
            self.done.append("bundle")
            return folder

        cluster = types.SimpleNamespace(status=status)
        return types.SimpleNamespace(
            name=name, ensure=ensure, down=down, cluster=cluster, bundle=bundle
        )


@pytest.fixture
def world(monkeypatch, tmp_path):
    found = World()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv(held.VARIABLE, "another")  # so that it is as it was afterwards
    monkeypatch.delenv(held.VARIABLE)
    monkeypatch.setattr(held, "Testbed", found.testbed)
    monkeypatch.setattr(keeper, "start", found.start)
    monkeypatch.setattr(keeper, "end", found.end)
    monkeypatch.chdir(tmp_path)
    return found


def join(name="a", settings=SESSION, spec=SPEC, *, asked=False):
    return held.join(name, spec, settings, QuietProgress(), asked=asked, tell=lambda line: None)


def leave(name="a", settings=SESSION):
    return held.leave(name, settings, QuietProgress())


def test_the_first_process_brings_it_up_and_the_session_takes_it_down(world):
    assert join().name == join().name == "a"
    assert world.done == ["hold a process", "ensure a"]
    assert os.environ[held.VARIABLE] == str(os.getpid())  # `testbed run` in a test joins
    assert held.names(SESSION) == ("a",)
    assert leave() == ""
    assert world.done[2:] == ["down a", "let go"]
    assert held.names(SESSION) == ()
    assert held.VARIABLE not in os.environ
    assert leave() == ""  # again: nothing to do
    assert len(world.done) == 4


def test_one_that_was_there_stays(world):
    world.up.add("a")
    join()
    assert held.runs("a", SESSION)
    assert leave() == "a"
    assert world.done == ["hold a process", "ensure a", "let go"]


def test_one_that_shall_be_kept_stays(world):
    keep = Settings(process=4711, provider="process", keep=True)
    join(settings=keep)
    assert leave(settings=keep) == "a"
    assert "down a" not in world.done


def test_ones_own_is_not_taken_for_one_that_runs(world):
    join()
    assert not held.runs("a", SESSION)
    assert not held.runs("b", SESSION)


def test_what_failed_once_is_told_again_and_not_tried_again(world):
    world.error = DeployError("no", why="because", hint="do that")
    with pytest.raises(DeployError):
        join()
    world.error = None
    for _ in range(2):
        with pytest.raises(ClusterError, match="no: because") as caught:
            join()
        assert caught.value.hint == "do that"
        assert caught.value.artifacts is not None
    assert world.done.count("ensure a") == 1
    assert world.done.count("bundle") == 1
    leave()
    assert world.done[-2:] == ["down a", "let go"]  # what is there of it


def test_a_wrong_wish_needs_no_evidence(world):
    world.error = InputError("no such card")
    with pytest.raises(InputError):
        join()
    assert "bundle" not in world.done


def test_another_session_of_the_same_name_brings_up_its_own(world):
    join()
    other = Settings(process=4712, provider="process")
    assert held.names(other) == ()
    assert leave(settings=other) == ""
    assert "down a" not in world.done
    join(settings=other)
    assert world.done.count("hold a process") == 2


def test_a_keeper_that_died_is_replaced(world, monkeypatch):
    join()
    monkeypatch.setattr(held, "_lives", lambda pid: False)
    join()
    assert world.done.count("hold a process") == 2


def test_a_running_one_must_have_what_is_asked(world):
    world.up.add("a")
    two = ClusterSpec(cards=(CardSpec(count=2),))
    with pytest.raises(held.Unsuitable, match="a100-80gb:2 on a node"):
        join(spec=two, asked=True)
    assert join(spec=two).name == "a"  # nobody asked: it is used as it is


def test_a_name_that_cannot_be_is_refused_before_anything(world):
    with pytest.raises(InputError, match="cannot name"):
        join("../a")
    assert world.done == []
