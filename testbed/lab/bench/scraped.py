"""What programs count of themselves: sums of Prometheus' text form."""

from __future__ import annotations

import re
from collections.abc import Mapping

_LINE = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

Sums = dict[tuple[str, ...], float]


def sums(text: str, name: str, by: tuple[str, ...] = (), /, **only: str) -> Sums:
    """Return the values of a metric, added up by some of its labels.

    Args:
        text: An exposition.
        name: The metric, of a histogram with ``_sum`` or ``_count``.
        by: Labels whose values the key consists of; absent ones are empty.
        only: Values that other labels must have.
    """
    found: Sums = {}
    for line in text.splitlines():
        if not line.startswith(name):
            continue
        match = _LINE.match(line)
        if match is None or match["name"] != name:
            continue
        labels = dict(_LABEL.findall(match["labels"] or ""))
        if all(labels.get(label) == value for label, value in only.items()):
            key = tuple(labels.get(label, "") for label in by)
            found[key] = found.get(key, 0.0) + float(match["value"])
    return found


def mean_ms(text: str, name: str, **only: str) -> float:
    """Return the mean of a histogram of seconds, in milliseconds; 0 where nothing came."""
    count = sums(text, f"{name}_count", **only).get((), 0.0)
    total = sums(text, f"{name}_sum", **only).get((), 0.0)
    return 1000 * total / count if count else 0.0


def writes(before: str, after: str, pods: int) -> Mapping[str, float]:
    """Return how many calls a pod that changed something an API server took between two looks.

    The key is the method and the resource: ``POST pods/binding``.
    """
    labels = ("verb", "resource", "subresource")
    first = sums(before, "apiserver_request_total", labels)
    found: dict[str, float] = {}
    for (verb, *parts), count in sums(after, "apiserver_request_total", labels).items():
        more = count - first.get((verb, *parts), 0.0)
        if verb in ("POST", "PUT", "PATCH", "DELETE", "APPLY") and more >= pods / 100:
            found[f"{verb} {'/'.join(filter(None, parts))}"] = round(more / pods, 3)
    return dict(sorted(found.items(), key=lambda item: -item[1]))
