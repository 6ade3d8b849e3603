"""One testbed for a session, however many processes it has.

The first process that needs a testbed brings it up, under a lock; the others find in a
file that it is there, or why it is not: nobody tries again what has failed once. It is
taken down by the process that the session ends with, or by the keeper where that is
killed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from testbed.errors import ClusterError, InputError, MissingTool, TestbedError
from testbed.lab.bundle import default_place
from testbed.lab.cluster import lock, resolve
from testbed.lab.cluster.protocol import ClusterSpec, Progress
from testbed.lab.cluster.state import check_name, state_home
from testbed.lab.pytest_plugin import keeper
from testbed.lab.pytest_plugin.settings import Settings, lacks
from testbed.lab.testbed import Testbed
from testbed.lab.use import VARIABLE

#: A first bring-up fetches and builds Kubernetes.
_BRING_UP_S = 3600.0


class Unsuitable(InputError):
    """A running testbed that was named does not have what a test needs."""


class _State(msgspec.Struct, kw_only=True):
    """What the processes of a session tell each other of one testbed."""

    process: int
    provider: str
    keeper: int
    temporary: bool
    ready: bool = False
    #: Why it could not be brought up: what, why, hint.
    failed: dict[str, str] = msgspec.field(default_factory=dict)
    artifacts: str = ""


def join(
    name: str,
    spec: ClusterSpec,
    settings: Settings,
    progress: Progress,
    *,
    asked: bool,
    tell: Callable[[str], None],
) -> Testbed:
    """Return a testbed that is up and deployed.

    Args:
        name: Its name.
        spec: What it is where it has to be brought up.
        settings: The session's.
        progress: Told each step.
        asked: Somebody said what it must have: one that is up must have it.
        tell: Told which kind of cluster was chosen, where nobody said.

    Raises:
        Unsuitable: it is up and does not have that.
        InputError, MissingTool, ClusterError, DeployError: it cannot be brought up; a
            bundle is named. Also in every other process of the session.
    """
    check_name(name)
    with _locked(name):
        state = _read(name)
        if state is None or state.process != settings.process or not _lives(state.keeper):
            found = resolve(settings.provider, name)
            if found.why:
                tell(found.why)
            provider = found.kind
            kept = keeper.start(name, provider, settings.process, keep=settings.keep)
            state = _State(
                process=settings.process,
                provider=provider,
                keeper=kept.pid,
                temporary=kept.temporary,
            )
            _write(name, state)
        testbed = _testbed(name, state.provider, settings)
        if state.failed:
            raise _told_before(state)
        if asked and not state.temporary and (why := lacks(testbed.cluster.status(), spec)):
            raise Unsuitable(
                f"testbed {name!r} is not what this test needs",
                why=why,
                hint="name another testbed, or none (one is brought up then), or take this one down"
                f" (testbed down --name {name})",
            )
        if not state.ready:
            _bring_up(testbed, spec, state, progress)
    # A `testbed run` that a test starts on it is part of this session's use.
    os.environ[VARIABLE] = str(state.keeper)
    return testbed


def _bring_up(testbed: Testbed, spec: ClusterSpec, state: _State, progress: Progress) -> None:
    try:
        testbed.ensure(spec, progress)
    except Exception as error:
        found = error if isinstance(error, TestbedError) else ClusterError(str(error))
        if not isinstance(error, InputError | MissingTool):
            found.artifacts = testbed.bundle(default_place(testbed.name)) or found.artifacts
        state.failed = {"what": found.what, "why": found.why, "hint": found.hint}
        state.artifacts = str(found.artifacts or "")
        _write(testbed.name, state)
        raise
    state.ready = True
    _write(testbed.name, state)


def leave(name: str, settings: Settings, progress: Progress) -> str:
    """Take a testbed down if this session brought it up; return what stays up.

    Raises:
        ClusterError: it cannot be taken down.
    """
    with _locked(name):
        state = _read(name)
        if state is None or state.process != settings.process:
            return ""
        try:
            if state.temporary:
                Testbed(name, state.provider).down(progress)
        finally:
            # Where it could not be taken down, the keeper tries again at our end.
            state_kept = state.temporary and _there(name, state.provider)
            if not state_kept:
                keeper.end(state.keeper)
                keeper.state_file(name).unlink(missing_ok=True)
                if os.environ.get(VARIABLE) == str(state.keeper):
                    del os.environ[VARIABLE]
    return "" if state.temporary else name


def runs(name: str, settings: Settings) -> bool:
    """Tell whether a testbed is up that somebody else has brought up."""
    state = _read(name)
    if state is not None and state.process == settings.process:
        return not state.temporary
    return Testbed(name).cluster.status().state == "up"


def names(settings: Settings) -> tuple[str, ...]:
    """Return the testbeds that this session holds."""
    home = state_home()
    files = sorted(home.glob(".*.pytest")) if home.is_dir() else []
    found = [path.name[1:].removesuffix(".pytest") for path in files]
    return tuple(
        name
        for name in found
        if (state := _read(name)) is not None and state.process == settings.process
    )


def _testbed(name: str, provider: str, settings: Settings) -> Testbed:
    testbed = Testbed(name, provider)
    if settings.kind_image and provider == "kind":
        from testbed.lab.pytest_plugin.kind_fixture import with_image

        testbed.cluster = with_image(name, settings.kind_image)
    return testbed


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _there(name: str, provider: str) -> bool:
    try:
        return Testbed(name, provider).cluster.status().state != "absent"
    except TestbedError:
        return True


def _told_before(state: _State) -> ClusterError:
    failed = state.failed
    return ClusterError(
        failed.get("what", ""),
        why=failed.get("why", ""),
        hint=failed.get("hint", ""),
        artifacts=Path(state.artifacts) if state.artifacts else None,
    )


@contextlib.contextmanager
def _locked(name: str) -> Iterator[None]:
    path = state_home() / f".{name}.pytest-lock"
    try:
        with lock.locked(path, f"testbed {name!r}", deadline_s=_BRING_UP_S):
            yield
    finally:
        with contextlib.suppress(OSError):
            path.parent.rmdir()  # the last testbed's; another's state keeps it


def _read(name: str) -> _State | None:
    try:
        return msgspec.json.decode(keeper.state_file(name).read_bytes(), type=_State)
    except (OSError, msgspec.DecodeError):
        return None


def _write(name: str, state: _State) -> None:
    path = keeper.state_file(name)
    part = path.with_name(path.name + ".new")
    part.write_bytes(msgspec.json.encode(state))
    part.replace(path)
