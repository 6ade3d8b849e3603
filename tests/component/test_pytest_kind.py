"""The pytest plugin beside the real pytest-kind, with a stand-in for the program kind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from testbed.lab.cluster.kind import layout as kind_layout
from testbed.lab.cluster.kind.record import Record

from ..pytest_kind_site import site

pytestmark = pytest.mark.timeout(600)  # two sessions of pytest each, on a busy machine

#: Keeps clusters in a file, writes kubeconfigs as kind does, and what it was asked.
KIND = """\
#!{python}
import json, os, pathlib, sys
home = pathlib.Path({home!r})
known = home / "clusters"
names = known.read_text().split() if known.exists() else []
words = [w for w in sys.argv[1:] if not w.startswith("--")]
options = {{}}
arguments = iter(sys.argv[1:])
for each in arguments:
    if each.startswith("--"):
        key, equals, value = each.partition("=")
        options[key] = value if equals else next(arguments)
with (home / "asked").open("a") as log:
    log.write(json.dumps([sys.argv[1:], os.environ.get("DOCKER_HOST", "")]) + "\\n")
name = options.get("--name", "kind")
context = "kind-" + name
config = {{"apiVersion": "v1", "kind": "Config", "current-context": context,
    "clusters": [{{"name": context, "cluster": {{"server": "https://127.0.0.1:1"}}}}],
    "users": [{{"name": context, "user": {{"token": "t"}}}}],
    "contexts": [{{"name": context, "context": {{"cluster": context, "user": context}}}}]}}
if words[:2] == ["get", "clusters"]:
    print("\\n".join(names))
elif words[:2] in (["create", "cluster"], ["export", "kubeconfig"]):
    if (words[0] == "create") == (name in names):
        sys.exit("ERROR: " + name)
    names = sorted({{*names, name}})
    pathlib.Path(options["--kubeconfig"]).write_text(json.dumps(config))
elif words[:2] == ["delete", "cluster"]:
    names.remove(name)
else:
    sys.exit("unknown: " + " ".join(sys.argv[1:]))
known.write_text("\\n".join(names))
"""

PLAIN = """
def test_plain(kind_cluster):
    assert kind_cluster.name == "mine"
    assert kind_cluster.api.url.startswith("https://127.0.0.1")
    assert kind_cluster.kubectl("config", "current-context").strip() == "kind-mine"
"""

#: A session whose testbed is a kind cluster that a file describes; nothing is brought up.
HELD = """
import pytest
from testbed.lab.pytest_plugin import held
from testbed.lab.testbed import Testbed

@pytest.fixture(autouse=True, scope="session")
def pretended():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(held, "join", lambda name, *rest, **more: Testbed(name, "kind"))
        patch.setattr(held, "leave", lambda *rest: "")
        patch.setattr(held, "names", lambda settings: ())
        yield
"""

TOGETHER = """
import os

def test_together(testbed, kind_cluster):
    assert kind_cluster.name == testbed.name == "ours"
    assert kind_cluster.kubectl("config", "current-context").strip() == "kind-ours"
    assert os.environ["DOCKER_HOST"] == "unix:///run/own.sock"
"""


class Place:
    """A folder of tests, with a kind of its own on the path."""

    def __init__(self, folder: Path, site: Path) -> None:
        self.folder, self.site = folder, site
        self.home = folder / "kind-home"
        self.home.mkdir()
        self.kind = folder / "bin" / "kind"
        self.kind.parent.mkdir()
        self.kind.write_text(KIND.format(python=sys.executable, home=str(self.home)))
        self.kind.chmod(0o755)

    def session(self, *arguments, **variables):
        keep = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "VGPU_"))}
        environ = {
            **keep,
            "PYTHONPATH": str(self.site),
            "PATH": f"{self.kind.parent}:{os.environ['PATH']}",
            "XDG_STATE_HOME": str(self.folder / "state"),
            # A download would be refused, and seen.
            "HTTPS_PROXY": "http://127.0.0.1:1",
            **variables,
        }
        environ.pop("DOCKER_HOST", None)
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", *arguments],
            cwd=self.folder,
            env=environ,
            text=True,
            capture_output=True,
            timeout=250,
            check=False,
        )

    @property
    def clusters(self):
        path = self.home / "clusters"
        return path.read_text().split() if path.exists() else []

    def asked(self, *words):
        """Return the calls of kind that began with some words."""
        lines = (self.home / "asked").read_text().splitlines()
        calls = [json.loads(line) for line in lines]
        return [call for call in calls if call[0][: len(words)] == list(words)]


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path, site())


def test_its_fixture_alone_gets_programs_and_downloads_nothing(place):
    (place.folder / "test_plain.py").write_text(PLAIN)
    done = place.session("--cluster-name", "mine", "--testbed-provider", "process")
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(place.asked("create", "cluster")) == 1
    assert place.clusters == []  # as pytest-kind would, without --keep-cluster
    assert not list((place.folder / ".pytest-kind/mine").glob("kind-*"))


def test_its_reuse_works_and_without_us_does_not(place):
    (place.folder / "test_plain.py").write_text(PLAIN)
    (place.home / "clusters").write_text("mine")
    arguments = ("--cluster-name", "mine", "--keep-cluster")
    broken = place.session("-p", "no:vgpu_testbed", "--kind-bin", str(place.kind), *arguments)
    assert broken.returncode == 1
    assert "NoneType" in broken.stdout, broken.stdout
    mended = place.session("--testbed-provider", "process", *arguments)
    assert mended.returncode == 0, mended.stdout + mended.stderr
    assert place.clusters == ["mine"]
    assert place.asked("create") == []


@pytest.mark.parametrize("given", [False, True])
def test_on_kind_its_cluster_is_the_testbed(place, given):
    """``--kubeconfig`` or its own place; another's context in the file stays."""
    folders = kind_layout.Folders(place.folder / "state/vgpu-testbed/ours")
    folders.top.mkdir(parents=True)
    Record(
        name="ours",
        token="t",
        stage="up",
        engine="docker",
        own=True,
        environment={"DOCKER_HOST": "unix:///run/own.sock"},
        data="",
        port=1,
        nodes=1,
        cards="a100-80gb:1",
        image="",
        runc="",
        kind=str(place.kind),
        mounts=[],
    ).write(folders.record)
    (place.home / "clusters").write_text("other\nours")
    for name, path in (("ours", folders.kubeconfig), ("other", place.folder / "mine.yaml")):
        options = ["--name", name, "--kubeconfig", path]
        subprocess.run([place.kind, "export", "kubeconfig", *options], check=True)
    (place.folder / "conftest.py").write_text(HELD)
    (place.folder / "test_together.py").write_text(TOGETHER)
    path = place.folder / ("mine.yaml" if given else ".pytest-kind/ours/kubeconfig")
    more = ("--kubeconfig", "mine.yaml") if given else ()
    # A name of pytest-kind's option alone says that kind is meant.
    done = place.session("--cluster-name", "ours", *more)
    assert done.returncode == 0, done.stdout + done.stderr
    assert place.asked("create") == place.asked("delete") == []
    # Asked in the environment in which the testbed's engine is reached.
    assert {call[1] for call in place.asked("get", "clusters")} == {"unix:///run/own.sock"}
    if given:
        assert [c["name"] for c in yaml.safe_load(path.read_text())["contexts"]] == ["kind-other"]
    else:
        assert not path.exists()
