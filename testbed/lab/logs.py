"""Whose log ``testbed logs`` shows: the cluster's processes, the stack's pods, any pod."""

from __future__ import annotations

import datetime as dt
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import InputError, known_hint
from testbed.lab.deploy import common
from testbed.stack import names

#: Component of the stack -> (its pods' label, container).
STACK: Mapping[str, tuple[str, str]] = {
    "webhook": (common.WEBHOOK, "webhook"),
    "scheduler": (common.SCHEDULER, "kube-scheduler"),
    "extender": (common.SCHEDULER, "extender"),
    "plugin": (common.PLUGIN, "plugin"),
    "monitor": (common.MONITOR, "monitor"),
}
_POLL_S = 0.2
_TAIL_BLOCK = 1 << 16
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """Logs of the cluster's processes, by the name that is shown."""

    files: Mapping[str, Path]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pods:
    """Logs of pods: of one by name, or of all that a label selects."""

    namespace: str
    pod: str = ""
    labels: str = ""
    container: str = ""


def find(
    word: str, files: Mapping[str, Path], *, namespace: str, pods: Sequence[tuple[str, str]] = ()
) -> Files | Pods:
    """Return whose log a word means.

    Args:
        word: A component (``kubelet``, ``extender``), one process's name
            (``vgpu-node-1-kubelet``), or ``[NAMESPACE/]POD``.
        files: Logs of the cluster's processes, by name.
        namespace: Where a pod without namespace is looked for; empty for all.
        pods: (namespace, name) of the pods that there are.

    Raises:
        InputError: there is nothing of that name, or pods in several namespaces.
    """
    if word in STACK:
        label, container = STACK[word]
        selector = f"{common.NAME}={label}"
        return Pods(namespace=names.NAMESPACE, labels=selector, container=container)
    if word in files:
        return Files(files={word: files[word]})
    same = {name: path for name, path in files.items() if word in (component(name), _bare(name))}
    if same:
        return Files(files=same)
    where, _, name = word.rpartition("/")
    wanted = where or namespace
    found = [each for each in pods if each[1] == name and (not wanted or each[0] == wanted)]
    if len(found) == 1:
        return Pods(namespace=found[0][0], pod=name)
    if found:
        raise InputError(
            f"there is a pod {name} in several namespaces",
            why=", ".join(sorted(each for each, _ in found)),
            hint="name one with -n",
        )
    known = [*STACK, *map(component, files), *(pod for _, pod in pods)]
    raise InputError(
        f"there is no component and no pod {word!r}" + (f" in {wanted}" if wanted else ""),
        hint=known_hint(word, known, listed="there are"),
    )


def component(name: str) -> str:
    """Return which component a process's log is of: ``kubelet`` of ``vgpu-node-1-kubelet``."""
    match = re.fullmatch(r".+-(?:node-\d+|control-plane|worker\d*)(?:-(.+))?", name)
    return (match[1] or "init") if match else name


def _bare(name: str) -> str:
    return component(name).removeprefix("kube-")


def parse_since(text: str) -> float:
    """Return a length of time in seconds.

    Args:
        text: ``90``, ``90s``, ``5m``, ``2h``, ``1d``; sums such as ``1h30m``.

    Raises:
        InputError: it is no such time.
    """
    parts = re.findall(r"(\d+(?:\.\d+)?)([smhd]?)", text)
    if not parts or "".join(a + b for a, b in parts) != text:
        raise InputError(f"{text!r} is no length of time", hint="write 90s, 5m, 2h or 1h30m")
    return sum(float(number) * _UNITS[unit or "s"] for number, unit in parts)


def stamp(line: str, now: dt.datetime) -> float | None:
    """Return when a line of a component was written, Unix seconds; None if it does not say.

    Understands klog (``I1129 19:01:02.02``, local time without a year), containerd and
    etcd (RFC 3339), and our own programs (``19:01:02`` of today).
    """
    if match := re.match(r"[IWEF](\d\d)(\d\d) (\d\d):(\d\d):(\d\d)", line):
        month, day, hour, minute, second = map(int, match.groups())
        return _local(now, month, day, hour, minute, second)
    if match := re.search(r'(?:time=|"ts":)"?(\d{4}-\d\d-\d\dT[^"\s]+)', line[:400]):
        try:
            # Nanoseconds are more than the standard library reads.
            text = re.sub(r"(\.\d{6})\d+", r"\1", match[1])
            return dt.datetime.fromisoformat(text).timestamp()
        except ValueError:
            return None
    if match := re.match(r"(\d\d):(\d\d):(\d\d) ", line):
        hour, minute, second = map(int, match.groups())
        return _local(now, now.month, now.day, hour, minute, second)
    return None


def _local(
    now: dt.datetime, month: int, day: int, hour: int, minute: int, second: int
) -> float | None:
    try:
        found = dt.datetime(now.year, month, day, hour, minute, second)
        # A line of December that is read in January.
        if found > now.replace(tzinfo=None) + dt.timedelta(days=1):
            found = found.replace(year=now.year - 1)
    except ValueError:
        return None
    return found.timestamp()


def recent(lines: Iterable[str], since: float, now: dt.datetime) -> Iterator[str]:
    """Yield the lines from a time on; one without a time goes with the one before it."""
    fresh = False
    for line in lines:
        fresh = fresh or (stamp(line, now) or 0.0) >= since
        if fresh:
            yield line


def size_of(path: Path) -> int:
    """Return a log's length in bytes, 0 where it is gone."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def lines_of(path: Path, *, end: int, tail: int | None) -> list[str]:
    """Return a log's lines before byte ``end``; the last ones only where ``tail`` says so."""
    try:
        with path.open("rb") as file:
            data, start = b"", end
            while start > 0 and (tail is None or data.count(b"\n") <= tail):
                step = start if tail is None else min(start, _TAIL_BLOCK)
                start -= step
                file.seek(start)
                data = file.read(step) + data
    except OSError:
        return []
    lines = data.decode(errors="replace").splitlines()
    return lines if tail is None else lines[len(lines) - min(tail, len(lines)) :]


def follow(
    files: Mapping[str, Path], ends: Mapping[str, int], stop: Callable[[], bool]
) -> Iterator[tuple[str, str]]:
    """Yield (name, line) of what lies behind each log's end, until ``stop`` says so."""
    ends = dict(ends)
    rests = dict.fromkeys(files, b"")
    while not stop():
        quiet = True
        for name, path in files.items():
            size = size_of(path)
            if size < ends[name]:  # written anew
                ends[name], rests[name] = 0, b""
            if size == ends[name]:
                continue
            quiet = False
            with path.open("rb") as file:
                file.seek(ends[name])
                data = rests[name] + file.read(size - ends[name])
            ends[name] = size
            *lines, rests[name] = data.split(b"\n")
            for line in lines:
                yield name, line.decode(errors="replace")
        if quiet:
            time.sleep(_POLL_S)


def kubectl_arguments(
    target: Pods, *, since_s: float = 0, tail: int | None = None, following: bool = False
) -> list[str]:
    """Return the arguments of ``kubectl`` that show a pod's log."""
    arguments = ["logs", "-n", target.namespace, f"--tail={-1 if tail is None else tail}"]
    if target.pod:
        arguments.append(target.pod)
    else:
        # Without it kubectl follows five at most, and there may be sixteen nodes.
        arguments += ["-l", target.labels, "--prefix", "--max-log-requests=64"]
    arguments += ["-c", target.container] if target.container else ["--all-containers", "--prefix"]
    if since_s:
        arguments.append(f"--since={max(1, round(since_s))}s")
    if following:
        arguments.append("-f")
    return arguments


def split_prefix(line: str, source: str) -> tuple[str, str]:
    """Return whose line it is and the line, of one that kubectl has marked or not."""
    match = re.match(r"\[pod/([^\]\s]+)\] ", line)
    return (match[1], line[match.end() :]) if match else (source, line)


def as_json(source: str, line: str) -> str:
    """Return one line of a log as one JSON document on one line."""
    return json.dumps({"source": source, "line": line}, ensure_ascii=False)
