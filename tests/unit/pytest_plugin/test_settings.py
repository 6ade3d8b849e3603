"""What options, configuration file and markers mean."""

from types import SimpleNamespace

import pytest

from testbed.card.spec import CardSpec
from testbed.errors import InputError
from testbed.lab.cluster.protocol import ClusterStatus, NodeStatus
from testbed.lab.pytest_plugin import settings
from testbed.lab.pytest_plugin.settings import Need, Settings


class Config:
    """As much of pytest's as is read."""

    def __init__(self, ini=None, plugins=(), worker=0, **options):
        self._ini, self._options = ini or {}, options
        self.pluginmanager = SimpleNamespace(has_plugin=plugins.__contains__)
        self.stash = pytest.Stash()
        if worker:
            self.workerinput = {settings.PROCESS: worker}

    def getoption(self, name):
        return self._options.get(name, settings.KIND_DEFAULTS.get(name))

    def getini(self, name):
        return self._ini.get(name, False if name == "testbed_keep" else "")


def read(config):
    if settings.has_pytest_kind(config):
        settings.note_kind_options(config)
    return settings.read(config)


def test_the_command_line_goes_before_the_configuration_file():
    ini = {"testbed_cards": "t4:1", "testbed_name": "file", "testbed_nodes": "2"}
    found = read(Config(ini, testbed_name="line"))
    assert (found.name, found.cards, found.nodes) == ("line", "t4:1", 2)
    assert (found.provider, found.keep, found.timeout_s) == ("auto", False, 120.0)
    assert read(Config({"testbed_keep": True})).keep
    assert not read(Config({"testbed_keep": True}, testbed_keep=False)).keep


@pytest.mark.parametrize(
    "options",
    [{"testbed_nodes": "two"}, {"testbed_nodes": "0"}, {"testbed_nodes": "1.5"}]
    + [{"testbed_timeout": each} for each in ("-1", "nan", "soon")],
)
def test_a_number_that_is_none_is_refused(options):
    [name] = options
    with pytest.raises(pytest.UsageError, match=f"--{name.replace('_', '-')}"):
        read(Config(**options))


def test_names_follow_the_process_that_the_session_ends_with():
    assert read(Config(worker=77)).base_name == "pytest-77"
    assert read(Config(worker=77, testbed_keep=True)).base_name == "pytest"
    assert read(Config(worker=77, testbed_name="mine", testbed_keep=True)).base_name == "mine"


def test_a_need_has_a_testbed_of_its_own_unless_it_is_the_usual_one():
    found = Settings(process=77)
    other = settings.name_of(found, Need(cards="t4:1"))
    assert settings.name_of(found, Need()) == "pytest-77"
    assert settings.name_of(found, Need(cards="a100-80gb:1")) == "pytest-77"
    assert other.startswith("pytest-77-")
    assert settings.name_of(found, Need(cards="t4:1", nodes=1)) == other
    assert settings.name_of(found, Need(cards="t4:1", nodes=2)) not in ("pytest-77", other)
    long = Settings(name="x" * 30)
    assert len(settings.name_of(long, Need(cards="t4:1"))) == 30


def test_what_a_need_leaves_open_is_the_sessions():
    found = Settings(cards="t4:2", nodes=3)
    assert settings.spec_of(found, Need(nodes=1)).by_node() == ((CardSpec(profile="t4", count=2),),)
    assert settings.spec_of(found, Need(cards="t4:1")).nodes == 3
    assert settings.spec_of(found, Need(cards="t4:1;t4:2")).nodes == 2
    with pytest.raises(InputError, match="no-such-card"):
        settings.spec_of(found, Need(cards="no-such-card:1"))


def marked(*args, **kwargs):
    return SimpleNamespace(args=args, kwargs=kwargs)


@pytest.mark.parametrize(
    "marker",
    [
        marked("t4:1"),
        marked(card="t4:1"),
        marked(cards=["t4:1"]),
        marked(nodes=0),
        marked(nodes=True),
        marked(nodes="2"),
    ],
)
def test_a_marker_that_says_something_else_is_refused(marker):
    with pytest.raises(pytest.UsageError, match="does not take"):
        settings.need_of(marker)


def test_a_marker_is_read():
    found = settings.need_of(marked(cards=" t4:1 ", nodes=2))
    assert found == Need(cards="t4:1", nodes=2)
    assert settings.need_of(marked()).empty


def running(*nodes):
    """A testbed whose nodes have such cards."""
    made = [NodeStatus(name=str(i), ready=True, profiles=cards) for i, cards in enumerate(nodes)]
    return ClusterStatus(name="x", provider="process", state="up", nodes=tuple(made))


A, T = "a100-80gb", "t4"


@pytest.mark.parametrize(
    ("has", "cards", "fits"),
    [
        ([{A: 1}], "a100-80gb:1", True),
        ([{A: 2}], "a100-80gb:1", True),
        ([{A: 1}], "a100-80gb:2", False),
        ([{A: 1}], "t4:1", False),
        ([{A: 1, T: 2}], "t4:2,a100-80gb:1", True),
        ([{A: 1}], "a100-80gb:1;a100-80gb:1", False),
        ([{A: 4}, {A: 1}], "a100-80gb:1;a100-80gb:4", True),  # in whatever order
        ([{A: 4}, {A: 1}], "a100-80gb:2;a100-80gb:2", False),
        ([{A: 2}, {T: 2}], "t4:1", True),
        ([{A: 1}], "a100-80gb:1,a100-80gb:1", False),
    ],
)
def test_a_running_testbed_has_what_is_needed_or_lacks_it(has, cards, fits):
    specs = [tuple(CardSpec(profile=k, count=n) for k, n in each.items()) for each in has]
    why = settings.lacks(running(*specs), settings.spec_of(Settings(), Need(cards=cards)))
    assert (why == "") is fits, why


def test_cards_that_nobody_knows_are_not_judged():
    spec = settings.spec_of(Settings(), Need(cards="t4:1"))
    assert settings.lacks(running(()), spec) == ""


KIND = ("pytest-kind",)


def test_options_of_pytest_kind_mean_kind():
    usual = read(Config(plugins=KIND))
    assert (usual.provider, usual.name, usual.keep) == ("auto", "", False)
    named = read(Config(plugins=KIND, cluster_name="mine", keep_cluster=True))
    assert (named.provider, named.name, named.keep) == ("kind", "mine", True)
    chosen = read(Config(plugins=KIND, testbed_provider="kind", kind_image="kindest/node:v1.37.0"))
    assert (chosen.name, chosen.kind_image) == ("pytest-kind", "kindest/node:v1.37.0")
    ours = read(Config(plugins=KIND, testbed_provider="kind", testbed_name="a", cluster_name="b"))
    assert ours.name == "a"
    other = read(Config(plugins=KIND, testbed_provider="process", keep_cluster=True))
    assert (other.provider, other.name, other.keep) == ("process", "", False)


def test_one_cluster_where_a_test_asks_for_both():
    config = Config(plugins=KIND)
    settings.note_kind_options(config)
    config.stash[settings.ONE_CLUSTER] = True
    assert settings.read(config).provider == "kind"
