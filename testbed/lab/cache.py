"""The cache folder: things that are made once, keyed by what they are made from.

An entry appears whole or not at all: it is made in a folder beside its place and renamed
there together with a list of its files. An entry whose files are not those of the list
(a disk that ran full, a file edited by hand) is made anew.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from testbed.errors import TestbedError
from testbed.lab.cluster.protocol import Progress, Step

#: Name of the list in an entry; its presence says that the entry is whole.
_LIST = ".entry.json"
_POLL_S = 0.2
#: Longer than a cluster is left up; what it runs from must not go.
_UNUSED_S = 30 * 24 * 3600.0


def root() -> Path:
    """Return the cache folder, honouring ``XDG_CACHE_HOME``."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification: a relative path there is invalid and to be ignored.
    home = Path(base) if base.startswith("/") else Path.home() / ".cache"
    return home / "vgpu-testbed"


def key_of(*parts: str | bytes) -> str:
    """Return a short key for parts of content; ``("ab", "c")`` differs from ``("a", "bc")``."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(b"%d:" % len(data))
        digest.update(data)
    return digest.hexdigest()[:16]


def key_of_files(base: Path, files: list[Path]) -> str:
    """Return a key for files: their names below ``base``, their contents and mode."""
    parts: list[str | bytes] = []
    for file in sorted(files):
        parts += [file.relative_to(base).as_posix(), f"{file.stat().st_mode & 0o111:o}"]
        parts.append(hashlib.sha256(file.read_bytes()).digest())
    return key_of(*parts)


def find(kind: str, key: str) -> Path | None:
    """Return the whole entry of that kind and key, or None."""
    folder = root() / kind / key
    if not _is_whole(folder):
        return None
    with contextlib.suppress(OSError):  # a cache that somebody else owns is as good
        os.utime(folder / _LIST)
    return folder


def obtain(
    kind: str,
    key: str,
    make: Callable[[Path, Step], None],
    progress: Progress,
    text: str,
) -> Path:
    """Return the entry's folder, made first where it is missing or broken.

    Args:
        kind: Folder of the cache; entries of other keys of the kind are kept.
        key: Of everything that the content depends on.
        make: Fills an empty folder; what it raises leaves the cache as it was.
        progress: Where the making is reported.
        text: The step's text.

    Raises:
        TestbedError: the cache cannot be written; whatever ``make`` raises.
    """
    found = find(kind, key)
    if found:
        return found
    folder = root() / kind / key
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(error) from error
    with progress.step(text) as step, _lock(folder.with_name(f".{key}.lock"), step):
        found = find(kind, key)  # made while we waited for the lock
        if found:
            return found
        # Whoever made it before us was killed: nobody else makes this while we hold the lock.
        for left in (folder, *folder.parent.glob(f".{key}.*/")):
            _remove(left)
        part = Path(tempfile.mkdtemp(prefix=f".{key}.", dir=folder.parent))
        try:
            make(part, step)
            _seal(part)
            part.rename(folder)
        except BaseException:
            _remove(part)
            raise
        _forget(folder)
    return folder


def _forget(new: Path) -> None:
    """Remove entries beside a new one that nobody has asked for in a long time."""
    oldest = time.time() - _UNUSED_S
    for folder in new.parent.iterdir():
        try:
            if folder != new and folder.is_dir() and _used(folder) < oldest:
                _remove(folder)
        except OSError:
            continue  # in somebody else's hands


def _used(folder: Path) -> float:
    """When an entry was last asked for; a half-made one counts from when it was begun."""
    whole = folder / _LIST
    return (whole if whole.exists() else folder).stat().st_mtime


def _seal(folder: Path) -> None:
    """Open the entry to every reader and write its list."""
    folder.chmod(0o755)
    for path in folder.rglob("*"):
        if path.is_symlink():
            continue
        # Containers read entries as other users.
        mode = path.stat().st_mode & 0o777
        wanted = mode | (0o755 if path.is_dir() else 0o444 | (0o111 if mode & 0o100 else 0))
        if mode != wanted:
            path.chmod(wanted)
    text = json.dumps(_listing(folder), separators=(",", ":"))
    (folder / _LIST).write_text(text)


def _listing(folder: Path) -> dict[str, int]:
    """Name and size of every file and link; links have the size of their target's name."""
    found: dict[str, int] = {}
    for where, _, names in os.walk(folder):
        for name in names:
            path = Path(where, name)
            found[path.relative_to(folder).as_posix()] = path.lstat().st_size
    found.pop(_LIST, None)
    return found


def _is_whole(folder: Path) -> bool:
    try:
        wanted = json.loads((folder / _LIST).read_text())
        return bool(wanted == _listing(folder))
    except (OSError, ValueError):
        return False


def _remove(folder: Path) -> None:
    """Remove a folder, also one whose own folders are read-only."""
    if not folder.exists():
        return
    for where, names, _ in os.walk(folder):
        for name in (*names, ""):
            path = Path(where, name)
            if not path.is_symlink():
                path.chmod(0o700)
    shutil.rmtree(folder)


@contextmanager
def _lock(path: Path, step: Step) -> Iterator[None]:
    """Hold a lock that ends with the process, however it ends."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise _unwritable(error) from error
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                step.update("waiting for another run that makes the same")
                time.sleep(_POLL_S)
        yield
    finally:
        os.close(handle)


def _unwritable(error: OSError) -> TestbedError:
    return TestbedError(
        "cannot write the cache folder",
        why=str(error),
        hint="set XDG_CACHE_HOME to a folder that you can write",
    )
