"""The pytest plugin: a test submits pods to a testbed and measures what they get.

Fixtures ``testbed``, ``cluster``, ``cards`` and ``submit``, options ``--testbed-…``, the
marker ``testbed`` (docs/pytest.md). pytest loads this module in every session of an
environment that has the package, so nothing is imported here but pytest until a fixture
is asked for.
"""

from __future__ import annotations

import contextlib
import functools
import io
import sys
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from testbed.lab.pytest_plugin import settings as _settings

if TYPE_CHECKING:
    from testbed.lab.cluster.protocol import Progress
    from testbed.lab.pytest_plugin.cards import Card
    from testbed.lab.pytest_plugin.cluster import Cluster
    from testbed.lab.pytest_plugin.submit import Submit
    from testbed.lab.testbed import Testbed

__all__ = ["cards", "cluster", "submit", "testbed"]

_SUBMIT: pytest.StashKey[Submit] = pytest.StashKey()
#: The session has used a testbed: only then is there something to take down.
_USED: pytest.StashKey[bool] = pytest.StashKey()
#: Names of testbeds that stay up.
_LEFT: pytest.StashKey[list[str]] = pytest.StashKey()
#: Exit statuses of sessions whose workers have all told how they ended.
_FINISHED = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)


# --- fixtures ------------------------------------------------------------------
@pytest.fixture(scope="session")
def testbed(request: pytest.FixtureRequest) -> Iterator[Testbed]:
    """A testbed that is up, with the sharing stack on it (``testbed.lab.testbed.Testbed``).

    Brought up once a session, also with pytest-xdist, and taken down at its end; one that
    was up and is named by ``--testbed-name`` is used as it is and stays.
    """
    _check_packages()
    from testbed.lab.pytest_plugin import held

    config = request.config
    settings = _settings.read(config)
    need: _settings.Need = getattr(request, "param", _settings.Need())
    spec = _settings.spec_of(settings, need)
    name = _settings.name_of(settings, need)
    # Of one that is up only what somebody said is demanded.
    asked = not need.empty or bool(settings.cards) or settings.nodes is not None
    _note_use(config)
    with _progress(config) as progress:
        try:
            # A need of a test is met by the running testbed that was named, or not at all.
            if settings.name and not need.empty and held.runs(settings.name, settings):
                name = settings.name
            tell = functools.partial(_say, config)
            found = held.join(name, spec, settings, progress, asked=asked, tell=tell)
        except held.Unsuitable as error:
            if need.empty:
                raise
            pytest.skip(error.text())
    yield found
    if not _is_worker(config):  # of several workers, others may still need it
        _leave(config, name)


@pytest.fixture(scope="session")
def cluster(testbed: Testbed) -> Cluster:
    """The testbed's cluster: ``kubeconfig``, ``context``, ``kubectl(…)``, ``kube``, ``nodes``."""
    from testbed.lab.pytest_plugin.cluster import Cluster

    return Cluster(testbed)


@pytest.fixture
def cards(testbed: Testbed) -> list[Card]:
    """The testbed's cards: uuid, model, memory, and what each counts now for each pod."""
    from testbed.lab.pytest_plugin.cards import all_cards

    return all_cards(testbed.kube)


@pytest.fixture
def submit(request: pytest.FixtureRequest, testbed: Testbed) -> Iterator[Submit]:
    """Submits pods: ``submit(script="…", gpumem="20Gi", gpucores=30)``, or a manifest.

    They are in a namespace of the test's own and are gone after it. When the test fails,
    its report has their description, explanation and logs.
    """
    from testbed.lab.pytest_plugin.submit import Submit

    timeout_s = _settings.read(request.config).timeout_s
    found = Submit(testbed, request.node.name, timeout_s=timeout_s)
    request.node.stash[_SUBMIT] = found
    try:
        yield found
    finally:
        found.close()


# --- hooks ---------------------------------------------------------------------
def pytest_addoption(parser: pytest.Parser) -> None:
    _settings.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _settings.MARKER)
    if _settings.has_pytest_kind(config):
        _settings.note_kind_options(config)
    _settings.read(config)  # a mistyped value is told before anything runs


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Bring tests of one need together, after all that have none: one testbed after another."""
    needs = [_need_of(item) for item in items]
    order = {need: number for number, need in enumerate(dict.fromkeys([_NONE, *needs]))}
    if len(order) > 1:
        numbers = {id(item): order[need] for item, need in zip(items, needs, strict=True)}
        items.sort(key=lambda item: numbers[id(item)])


def pytest_collection_finish(session: pytest.Session) -> None:
    """Make one cluster of two where a test asks for ours and for pytest-kind's."""
    if not _settings.has_pytest_kind(session.config):
        return
    for item in session.items:
        names = set(getattr(item, "fixturenames", ()))
        if {"kind_cluster", "testbed"} <= names:
            session.config.stash[_settings.ONE_CLUSTER] = True


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    """Prepare pytest-kind's ``kind_cluster``: its own kind is too old, its re-use broken."""
    if fixturedef.argname == "kind_cluster" and fixturedef.func.__module__ == "pytest_kind.plugin":
        from testbed.lab.pytest_plugin import kind_fixture

        with _progress(request.config) as progress:
            if _settings.read(request.config).provider == "kind":
                kind_fixture.join(request, request.getfixturevalue("testbed"), progress)
            else:
                kind_fixture.mend(request.config, progress)
    return (yield)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell pytest-xdist's workers which process the session ends with."""
    node.workerinput[_settings.PROCESS] = _settings.read(node.config).process


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give marked tests a testbed of their need."""
    marker = metafunc.definition.get_closest_marker("testbed")
    if marker is None or "testbed" not in metafunc.fixturenames:
        return
    need = _settings.need_of(marker)
    if not need.empty:
        metafunc.parametrize(
            "testbed", [need], indirect=True, scope="session", ids=[pytest.HIDDEN_PARAM]
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add what is known of a failed test's pods, while they are there."""
    report = yield
    if call.excinfo is None or not report.failed:
        return report
    submit = item.stash.get(_SUBMIT, None)
    if submit is not None and call.when in ("setup", "call"):
        from testbed.lab.pytest_plugin.cluster import Cluster
        from testbed.lab.pytest_plugin.evidence import sections

        report.sections += sections(Cluster(submit.testbed), submit.pods)
    if call.when == "setup" and _is_ours(call.excinfo.value):
        # The error says what failed, why, and what to do; where in our code says nothing.
        report.longrepr = call.excinfo.value.text()  # type: ignore[attr-defined]
    return report


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Remember that a worker of pytest-xdist has used a testbed, or may have."""
    if error or getattr(node, "workeroutput", {}).get(_settings.PROCESS):
        _note_use(node.config)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Take down what is still there: after an interrupt, and what workers have used."""
    config = session.config
    # Workers of an interrupted session do not tell any more whether they have used one.
    unsure = config.pluginmanager.has_plugin("dsession") and exitstatus not in _FINISHED
    if _is_worker(config) or not (unsure or _USED in config.stash):
        return
    from testbed.errors import TestbedError
    from testbed.lab.pytest_plugin import held

    for name in held.names(_settings.read(config)):
        try:
            _leave(config, name)
        except TestbedError as error:
            raise pytest.exit.Exception(error.text(), returncode=2) from error


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say which testbeds stay up, and how to go on with them."""
    if not config.getoption("testbed_keep") and not config.getini("testbed_keep"):
        return
    for name in config.stash.get(_LEFT, list[str]()):
        if name:
            command = f"testbed status --name {name}; testbed down --name {name}"
            terminalreporter.write_line(f"testbed {name} is left up   ({command})")


# --- below ---------------------------------------------------------------------
_NONE = _settings.Need()


def _need_of(item: pytest.Item) -> _settings.Need:
    """Return what an item's testbed must be; nothing where it uses none."""
    marker = item.get_closest_marker("testbed")
    if marker is None or "testbed" not in getattr(item, "fixturenames", ()):
        return _NONE
    return _settings.need_of(marker)


def _check_packages() -> None:
    """See that what brings testbeds up can be imported.

    Raises:
        MissingTool: the package is there without what it needs for that.
    """
    try:
        import testbed.lab.pytest_plugin.held  # noqa: F401
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "testbed":
            raise
        from testbed.errors import MissingTool

        raise MissingTool(
            "a testbed cannot be brought up from here",
            why=f"the Python package {error.name!r} is not installed",
            hint="pip install 'vgpu-testbed[pytest]'",
        ) from error


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def _leave(config: pytest.Config, name: str) -> None:
    from testbed.lab.pytest_plugin import held

    settings = _settings.read(config)
    with _progress(config) as progress:
        left = held.leave(name, settings, progress)
    config.stash.setdefault(_LEFT, []).append(left)
    if not left and settings.provider == "kind" and _settings.has_pytest_kind(config):
        from testbed.lab.pytest_plugin import kind_fixture

        kind_fixture.part(config, name)


def _say(config: pytest.Config, line: str) -> None:
    print(line, file=_Stream(config.pluginmanager.getplugin("terminalreporter")))


def _note_use(config: pytest.Config) -> None:
    config.stash[_USED] = True
    config.stash.setdefault(_LEFT, [])
    if _is_worker(config):
        config.workeroutput[_settings.PROCESS] = True  # type: ignore[attr-defined]


def _is_ours(error: BaseException) -> bool:
    errors = sys.modules.get("testbed.errors")
    return errors is not None and isinstance(error, errors.TestbedError)


@contextlib.contextmanager
def _progress(config: pytest.Config) -> Iterator[Progress]:
    """Let steps be seen while the body runs, although pytest captures output."""
    from testbed.lab.progress import ConsoleProgress

    capture: Any = config.pluginmanager.getplugin("capturemanager")
    terminal: Any = config.pluginmanager.getplugin("terminalreporter")
    free: Callable[[], contextlib.AbstractContextManager[None]] = (
        contextlib.nullcontext if capture is None else capture.global_and_fixture_disabled
    )
    with free():
        yield ConsoleProgress(stream=_Stream(terminal), tty=False)


class _Stream(io.StringIO):
    """Standard error, on a line of its own: pytest may be in the middle of one."""

    encoding = "utf-8"

    def __init__(self, terminal: Any) -> None:
        super().__init__()
        self._terminal = terminal
        self.encoding = getattr(sys.stderr, "encoding", "") or "utf-8"

    def write(self, text: str, /) -> int:
        if self._terminal is not None and hasattr(self._terminal, "ensure_newline"):
            self._terminal.ensure_newline()
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()
