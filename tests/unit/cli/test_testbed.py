"""What a testbed does for `run`: what is missing, what is old, what is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.card.spec import CardSpec
from testbed.errors import InputError
from testbed.lab import testbed as module
from testbed.lab.cluster.protocol import ClusterSpec, ClusterStatus
from testbed.lab.deploy.chosen import Chosen
from testbed.lab.images.model import Image
from testbed.lab.progress import QuietProgress
from testbed.lab.testbed import Info, Testbed, cluster_spec

QUIET = QuietProgress()
MIXED = ((CardSpec(profile="a100-80gb", count=2),), (CardSpec(profile="a100-40gb"),))


def images(mark):
    return tuple(
        Image(reference=f"{name}:{mark}", archive=None, binds=())
        for name in ("testbed/base", "testbed/kube-scheduler", "testbed/pytorch")
    )


class FakeCluster:
    driver_root = "/run/vgpu-emulated"

    def __init__(self, state, was=None):
        self.state, self.was, self.asked = state, was, []

    def spec(self):
        return self.was

    def status(self):
        return ClusterStatus(name="t", provider="process", state=self.state)

    def up(self, spec, progress, *, images=None):
        self.asked.append((spec, images))
        self.state = "up"
        return self.status()


@pytest.fixture
def world(monkeypatch):
    """A testbed whose images are counted, and whose deployments are listed."""

    class Watched(Testbed):
        def __init__(self, cluster, deployed):
            self.name, self.provider, self._kube = "t", "process", None
            self.cluster, self.deployed, self.deployments = cluster, deployed, []
            self.choice = None

        def chosen(self):
            return self.choice

        def info(self):
            return self.deployed

        def certificates_until(self):
            return "2027-11-30T00:00:00Z"

        def deploy(self, progress, *, prepared=None):
            self.deployments.append(prepared)
            self.deployed = self._info_of(self._values(prepared, self.choice), prepared)
            return self.deployed

    made = []
    monkeypatch.setattr(module.images, "prepare", lambda progress: made.append(1) or images("new"))
    monkeypatch.setattr(module.artifacts, "library", lambda name: Path(__file__))

    def build(state, deployed=None, was=None):
        found = Watched(FakeCluster(state, was), deployed)
        found.made = made
        return found

    return build


def test_its_status_tells_where_the_stack_is_not(world):
    """As after an ``up`` that was killed while it deployed."""
    found = world("up")
    (note,) = found.status().notes
    assert "not deployed" in note and "testbed deploy --name t" in note
    found.ensure(None, QUIET)
    assert found.status().notes == ()
    assert found.status().certificates_until == "2027-11-30T00:00:00Z"
    assert world("absent").status() == world("absent").cluster.status()


def test_a_new_testbed_makes_its_images_once(world):
    found = world("absent")
    spec = ClusterSpec(nodes=2)
    info = found.ensure(spec, QUIET)
    assert found.cluster.asked == [(spec, images("new"))]
    assert found.deployments == [images("new")]
    assert found.made == [1]
    assert info.base_image == "testbed/base:new" and info.manifests


def test_what_this_tree_deployed_is_used(world):
    found = world("absent")
    first = found.ensure(None, QUIET)
    assert found.ensure(None, QUIET) == first
    assert len(found.deployments) == len(found.cluster.asked) == 1


@pytest.mark.parametrize("field", ["base_image", "pytorch_image", "shim", "manifests"])
def test_what_other_sources_deployed_is_deployed_anew(world, field):
    found = world("absent")
    now = found.ensure(None, QUIET)
    found.deployed = Info(**{**{f: getattr(now, f) for f in now.__struct_fields__}, field: "old"})
    assert found.ensure(None, QUIET) == now
    assert len(found.deployments) == 2


def test_what_an_operator_chose_stays_chosen(world):
    found = world("absent")
    found.ensure(None, QUIET)
    found.choice = Chosen(schedulerReplicas=2)
    chosen = found.ensure(None, QUIET)
    assert found.ensure(None, QUIET) == chosen
    assert len(found.deployments) == 2
    manifests = {(m["kind"], m["metadata"]["name"]): m for m in found.manifests(QUIET)}
    assert manifests["Deployment", "vgpu-scheduler"]["spec"]["replicas"] == 2
    # A file that is given goes before it.
    plain = {(m["kind"], m["metadata"]["name"]): m for m in found.manifests(QUIET, Chosen())}
    assert plain["Deployment", "vgpu-scheduler"]["spec"]["replicas"] == 1


def test_a_notebook_in_a_run_takes_what_is_there_and_makes_nothing(world):
    old = Info(provider="process", stack="s", shim="l", pytorch_image="i", base_image="b",
               scheduler_image="k")  # fmt: skip
    found = world("up", old)
    assert found.ensure(None, QUIET, as_it_is=True) == old
    assert found.made == [] and found.deployments == []
    # What was never deployed to its end is.
    found.deployed = None
    assert found.ensure(None, QUIET, as_it_is=True).base_image == "testbed/base:new"


def test_a_broken_testbed_comes_back_as_it_was(world):
    was = ClusterSpec(nodes=2, each_node=MIXED, port=7443)
    found = world("broken", was=was)
    found.ensure(None, QUIET)
    assert found.cluster.asked[0][0] == was
    asked = ClusterSpec(nodes=3)
    found.cluster.state = "broken"
    found.ensure(asked, QUIET)
    assert found.cluster.asked[1][0] == asked


ALIKE = ClusterSpec(nodes=2, each_node=(MIXED[1],) * 2, port=7443)


@pytest.mark.parametrize(
    ("was", "words", "cards", "port"),
    [
        (None, {}, "t4:1", 0),
        (None, {"nodes": 2}, "t4:1", 0),
        (None, {"cards": "l40s:3", "port": 7444}, "l40s:3", 7444),
        (ALIKE, {}, "a100-40gb:1;a100-40gb:1", 7443),
        (ALIKE, {"port": 7444}, "a100-40gb:1;a100-40gb:1", 7444),
        (ALIKE, {"nodes": 3}, "a100-40gb:1;a100-40gb:1;a100-40gb:1", 7443),
        (ALIKE, {"cards": "l40s:2"}, "l40s:2;l40s:2", 7443),
        (ALIKE, {"cards": "l40s;t4;t4"}, "l40s:1;t4:1;t4:1", 7443),
    ],
)
def test_what_nobody_says_stays_as_it_is(world, was, words, cards, port):
    found = world("up", was=was).wish(**words, default="t4:1")
    nodes = words.get("nodes", cards.count(";") + 1)
    assert found.by_node() == cluster_spec(cards, nodes).by_node()
    assert found.port == port


def test_different_nodes_do_not_become_more_by_a_number(world):
    was = ClusterSpec(nodes=2, each_node=MIXED)
    with pytest.raises(InputError, match="'a100-80gb:2;a100-40gb:1' gives cards for 2 nodes"):
        world("up", was=was).wish(nodes=3, default="t4:1")


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("existing", "not in this version"),
        ("proces", "mean process"),
    ],
)
def test_kinds_of_clusters_that_there_are_not(kind, why):
    with pytest.raises(InputError, match=why):
        Testbed("t", kind)
