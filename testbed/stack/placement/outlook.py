"""Where a pod may go and how good each node is, kept from one decision to the next.

A cluster's pods ask for few things again and again, pods that wait above all, and between
two decisions few nodes change. So what was computed for a request is kept with the ledger's
stamp of that moment, and only the rows that changed since are computed anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

import numpy as np

from testbed.stack.placement.arrays import Floats, Rows
from testbed.stack.placement.fit import bonus, may_fit
from testbed.stack.placement.ledger import Ledger
from testbed.stack.placement.request import PodRequest
from testbed.stack.placement.single import may_fit_row

#: Requests that are remembered, each with a number for every node.
_KEPT = 48
#: With more changed rows than this all are computed anew, which takes no longer.
_MANY = 256
#: So few are computed one by one.
_FEW = 4


class Outlook:
    """What a request finds.

    Args:
        pod: The request.

    Attributes:
        key: For every row the score of its node, the better the higher whatever the
            pod's policy, and ``-inf`` where the pod does not fit.
    """

    __slots__ = ("_bonus", "_stamp", "key", "pod")

    def __init__(self, pod: PodRequest) -> None:
        self.pod = pod
        self.key: Floats = np.zeros(0)
        self._bonus: Floats = np.zeros(0)
        self._stamp = -1

    def update(self, ledger: Ledger) -> None:
        """Take in what has changed in the ledger since the last time."""
        changed = ledger.changed_since(self._stamp)
        if changed is None:
            self._bonus = bonus(ledger, self.pod)
            self.key = self._keys(ledger, slice(0, ledger.size))
        elif len(changed) > _MANY:
            self.key = self._keys(ledger, slice(0, ledger.size))
        elif len(changed) <= _FEW:
            self._one_by_one(ledger, changed)
        else:
            rows: Rows = np.fromiter(changed, np.int64, len(changed))
            self.key[rows] = self._keys(ledger, rows)
        self._stamp = ledger.stamp

    def _keys(self, ledger: Ledger, rows: Rows | slice) -> Floats:
        grades = ledger.grade[rows] + self._bonus.take(ledger.kind[rows])
        if self.pod.node_policy != "binpack":
            np.negative(grades, out=grades)
        np.copyto(grades, -inf, where=~may_fit(ledger, self.pod, rows))
        return grades

    def _one_by_one(self, ledger: Ledger, rows: Iterable[int]) -> None:
        sign = 1 if self.pod.node_policy == "binpack" else -1
        for row in rows:
            grade = -inf
            if may_fit_row(ledger, self.pod, row):
                grade = sign * float(ledger.grade[row] + self._bonus[ledger.kind[row]])
            self.key[row] = grade

    def score(self, row: int) -> float:
        """Return a row's score on HAMi's scale (``fit.score``)."""
        key = 10 * float(self.key[row])
        return key if self.pod.node_policy == "binpack" else -key


def outlook(ledger: Ledger, pod: PodRequest) -> Outlook:
    """Return what a request finds now. ``pod_request`` gives equal pods the same request."""
    kept: dict[int, Outlook] = ledger.outlooks
    found = kept.pop(id(pod), None)
    if found is None or found.pod is not pod:
        found = Outlook(pod)
    kept[id(pod)] = found
    if len(kept) > _KEPT:
        del kept[next(iter(kept))]
    found.update(ledger)
    return found
