"""What the command line and the configuration file say; nothing heavy is imported here."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from testbed.lab.cluster.protocol import CardSpec, ClusterSpec, ClusterStatus

#: Same as ``testbed.cli.options.DEFAULT_CARDS``, which lies above this package.
DEFAULT_CARDS = "a100-80gb:1"
#: The testbed that ``--testbed-keep`` leaves, and finds again, where no name is given.
KEPT_NAME = "pytest"
#: What pytest-xdist's workers are told by the process that started them.
PROCESS = "vgpu_testbed_process"
#: Options of pytest-kind 22.11.1 and their defaults.
KIND_DEFAULTS: dict[str, Any] = {
    "cluster_name": "pytest-kind",
    "keep_cluster": False,
    "kubeconfig": None,
    "kind_image": None,
    "kind_bin": None,
    "kind_kubectl_bin": None,
}
KIND_OPTIONS: pytest.StashKey[dict[str, Any]] = pytest.StashKey()
#: Some test asks for pytest-kind's cluster and for ours: they are one.
ONE_CLUSTER: pytest.StashKey[bool] = pytest.StashKey()
MARKER = (
    "testbed(cards=None, nodes=None): the test needs a testbed of these cards and nodes"
    " (words of `testbed up --cards … --nodes …`); one is brought up for such tests, and a"
    " running one that was named must have them, else they are skipped"
)

_OPTIONS = (
    ("provider", "KIND", "kind of cluster: auto, process or kind (auto)"),
    ("name", "NAME", "name of the testbed; one that is up is used as it is and left up"),
    ("cards", "CARDS", f"cards of each node: PROFILE[:COUNT][,…][;…] ({DEFAULT_CARDS})"),
    ("nodes", "N", "how many nodes (as many as lists of cards)"),
    ("timeout", "SECONDS", "how long a pod may take to start, to tell, to be gone (120)"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the session's testbed shall be.

    Attributes:
        name: As the user gave it; empty without one.
        cards: Likewise.
        nodes: Likewise; None without.
        keep: Leave it up at the end.
        timeout_s: Deadline of waits for pods.
        process: The one that the session ends with: pytest's own, or with pytest-xdist
            that of all workers.
        kind_image: The nodes' image of a kind cluster, where pytest-kind's option names one.
    """

    provider: str = "auto"
    name: str = ""
    cards: str = ""
    nodes: int | None = None
    keep: bool = False
    timeout_s: float = 120.0
    process: int = 0
    kind_image: str = ""

    @property
    def base_name(self) -> str:
        """The session's name for its testbed."""
        return self.name or (KEPT_NAME if self.keep else f"pytest-{self.process}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What a test's marker asks for; an empty one is content with what the session has."""

    cards: str = ""
    nodes: int | None = None

    @property
    def empty(self) -> bool:
        return not self.cards and self.nodes is None


def add_options(parser: pytest.Parser) -> None:
    """Declare ``--testbed-…`` and the values of the same names in the configuration file."""
    group = parser.getgroup("testbed", "GPU sharing on a testbed (vgpu-testbed)")
    for name, metavar, text in _OPTIONS:
        group.addoption(f"--testbed-{name}", metavar=metavar, default=None, help=text)
        parser.addini(f"testbed_{name}", text, default="")
    group.addoption(
        "--testbed-keep",
        action="store_true",
        default=None,
        help=f"leave the testbed up, for the next session (named {KEPT_NAME!r} without a name)",
    )
    parser.addini("testbed_keep", "leave the testbed up", type="bool", default=False)


def read(config: pytest.Config) -> Settings:
    """Return the settings; the command line goes before the configuration file.

    Raises:
        pytest.UsageError: a value that cannot be.
    """

    def said(name: str) -> str:
        given = config.getoption(f"testbed_{name}")
        return str(config.getini(f"testbed_{name}") if given is None else given).strip()

    keep = config.getoption("testbed_keep")
    provider, name, image = said("provider") or "auto", said("name"), ""
    if has_pytest_kind(config):
        options = config.stash[KIND_OPTIONS]
        if provider == "auto" and (options != KIND_DEFAULTS or ONE_CLUSTER in config.stash):
            provider = "kind"
        if provider == "kind":
            name, image = name or options["cluster_name"], options["kind_image"] or ""
            keep = keep or options["keep_cluster"]
    return Settings(
        provider=provider,
        name=name,
        kind_image=image,
        cards=said("cards"),
        nodes=None if not said("nodes") else int(_number("nodes", said("nodes"), whole=True)),
        keep=bool(config.getini("testbed_keep") if keep is None else keep),
        timeout_s=_number("timeout", said("timeout") or "120"),
        process=getattr(config, "workerinput", {}).get(PROCESS) or os.getpid(),
    )


def has_pytest_kind(config: pytest.Config) -> bool:
    """Tell whether pytest-kind is there, by the name of its entry point."""
    return config.pluginmanager.has_plugin("pytest-kind")


def note_kind_options(config: pytest.Config) -> None:
    """Keep what pytest-kind's options said: some are set for its fixture later."""
    config.stash[KIND_OPTIONS] = {name: config.getoption(name) for name in KIND_DEFAULTS}


def _number(name: str, text: str, *, whole: bool = False) -> float:
    try:
        found = int(text) if whole else float(text)
    except ValueError:
        found = 0
    if not 0 < found < 1e6:
        kind = "a whole number" if whole else "a number"
        raise pytest.UsageError(f"--testbed-{name} {text}: {kind} above 0 is wanted")
    return found


def need_of(marker: pytest.Mark) -> Need:
    """Return what a marker asks for.

    Raises:
        pytest.UsageError: it says what no testbed can be.
    """
    unknown = sorted(set(marker.kwargs) - {"cards", "nodes"})
    cards, nodes = marker.kwargs.get("cards") or "", marker.kwargs.get("nodes")
    if marker.args or unknown or not isinstance(cards, str):
        what = ", ".join(unknown) or ", ".join(map(repr, marker.args)) or repr(cards)
        raise pytest.UsageError(
            f"@pytest.mark.testbed does not take {what}: write cards='t4:1' and/or nodes=2"
        )
    if nodes is not None and (not isinstance(nodes, int) or isinstance(nodes, bool) or nodes < 1):
        raise pytest.UsageError(
            f"@pytest.mark.testbed does not take nodes={nodes!r}: write 1, 2, …"
        )
    return Need(cards=cards.strip(), nodes=nodes)


def spec_of(settings: Settings, need: Need) -> ClusterSpec:
    """Return the cluster to bring up.

    Raises:
        InputError: no such cards, too many, or lists for another number of nodes.
    """
    from testbed.lab.testbed import cluster_spec

    # A need for other cards says nothing of how many nodes there are, and the other way round.
    cards = need.cards or settings.cards or DEFAULT_CARDS
    nodes = need.nodes if need.nodes is not None else settings.nodes
    if need.cards and ";" in need.cards and need.nodes is None:
        nodes = None
    return cluster_spec(cards, nodes)


def name_of(settings: Settings, need: Need) -> str:
    """Return the name of the testbed for a need; the session's own where it is the same."""
    from testbed.lab.cache import key_of

    wanted, usual = spec_of(settings, need).by_node(), spec_of(settings, Need()).by_node()
    if wanted == usual:
        return settings.base_name
    return f"{settings.base_name[:23].rstrip('-')}-{key_of(repr(wanted))[:6]}"


def lacks(status: ClusterStatus, spec: ClusterSpec) -> str:
    """Return what a running testbed lacks of a need, nothing where it has it all.

    Each node that is wanted must find one of its own that has at least its cards.
    """
    if not status.nodes or not all(node.profiles for node in status.nodes):
        return ""  # nobody knows what cards they are: real ones, or another's cluster
    free = [_counts(node.profiles) for node in status.nodes]
    wanted = [_counts(cards) for cards in spec.by_node()]
    # The greediest first: who is content with any node leaves the larger ones.
    for cards in sorted(wanted, key=lambda each: -sum(each.values())):
        fitting = [has for has in free if all(has.get(k, 0) >= n for k, n in cards.items())]
        if not fitting:
            has = "; ".join(_words(each) for each in free) or "no further node"
            return f"it has {has}, and {_words(cards)} on a node is asked for"
        free.remove(min(fitting, key=lambda has: sum(has.values())))
    return ""


def _counts(cards: Iterable[CardSpec]) -> Counter[str]:
    found: Counter[str] = Counter()
    for card in cards:
        found[card.profile] += card.count
    return found


def _words(cards: Counter[str]) -> str:
    return ",".join(f"{profile}:{count}" for profile, count in cards.items())
