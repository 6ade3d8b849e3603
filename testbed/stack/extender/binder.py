"""Bind: wait for the node's turn, send one Binding, and know what became of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from testbed.errors import ClusterError, InputError
from testbed.stack import names
from testbed.stack.extender.api import AnswerLost, ApiError
from testbed.stack.extender.handler import (
    bindable,
    binding,
    expire_patch,
    refused,
    took_effect,
)
from testbed.stack.extender.nodelock import NodeLocks
from testbed.stack.extender.reservations import Reservation, Stage
from testbed.stack.extender.state import State
from testbed.stack.extender.turns import Turn
from testbed.stack.extender.wire import BindArgs
from testbed.stack.model import PodKey

log = logging.getLogger(__name__)

#: Longest wait for a turn; the scheduler's httpTimeout is 30 s.
TURN_WAIT_S = 20.0
#: How often, and how far apart, a pod is read whose Binding got no answer.
_READS, _READ_PAUSE_S = 4, 0.5


class PodApi(Protocol):
    """The calls that bind needs."""

    async def bind(self, binding: dict[str, Any]) -> None: ...

    async def read_pod(self, namespace: str, name: str) -> dict[str, Any] | None: ...

    async def patch_pod(self, namespace: str, name: str, patch: list[dict[str, Any]]) -> None: ...


class Binder:
    """Binds pods to the nodes that were reserved for them, a turn at a time."""

    def __init__(
        self,
        state: State,
        api: PodApi,
        *,
        label: bool,
        report: Callable[[PodKey, str, str], object],
        locks: NodeLocks | None = None,
        turn_wait_s: float = TURN_WAIT_S,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._state = state
        self._api = api
        self._label = label
        self._report = report
        self._locks = locks
        self._turn_wait_s = turn_wait_s
        self._sleep = sleep
        self._woken: dict[str, asyncio.Future[None]] = {}
        state.turns.listen(self._wake)

    async def bind(self, args: BindArgs) -> str:
        """Bind a pod; return "" or why it could not be bound.

        Whatever the failure, the reservation is given back before this returns,
        except where nobody knows whether the Binding took effect: then it is kept for the
        pod's next attempt, for a minute at most.
        """
        pod = PodKey(namespace=args.podnamespace, name=args.podname, uid=args.poduid)
        try:
            reservation = self._bindable(args)
            if reservation is None:
                return ""
            await self._bind(reservation)
        except (InputError, ClusterError) as error:
            text = error.what if not error.why else f"{error.what}: {error.why}"
            log.warning("%s not bound to %s: %s", pod, args.node, text)
            self._report(pod, "BindingFailed", text)
            return text
        log.info("%s bound to %s", pod, args.node)
        return ""

    def _bindable(self, args: BindArgs) -> Reservation | None:
        try:
            refusal = refused(self._state)
            if refusal:
                raise InputError(refusal)
            return bindable(self._state, args)
        except InputError:
            held = self._state.reservations.get(args.poduid)
            if held is not None and held.stage is Stage.RESERVED:
                # The scheduler's attempt is over; the next one filters anew.
                self._undo(held)
            raise

    async def _bind(self, reservation: Reservation) -> None:
        uid = reservation.pod.uid
        reservation.stage = Stage.WAITING
        try:
            await self._turn(reservation)
        except BaseException:
            self._undo(reservation)
            raise
        if self._state.reservations.get(uid) is not reservation:
            # Deleted, or bound by somebody else, while it waited.
            self._state.release(uid)
            raise InputError("the pod's reservation ended while it waited for its turn")
        if self._locks is not None:
            await self._lock(reservation)
        if not self._state.leads:
            self._state.release(uid)
            await self._unlock(reservation)
            raise InputError("this extender leads no more", why=f"{self._state.leader} does")
        reservation.stage = Stage.BINDING
        sent = binding(
            reservation,
            int(self._state.wall()),
            label=self._label,
            config=self._state.config,
        )
        try:
            await self._api.bind(sent)
        except AnswerLost as error:
            await self._find_out(reservation, sent, error, reads=_READS)
        except ApiError as error:
            if error.status != 409:
                if error.status == 404:
                    reservation.unanswered = False  # the pod is gone
                self._undo(reservation)
                await self._unlock(reservation)
                raise
            # Bound already: perhaps by this Binding, sent twice by a proxy.
            await self._find_out(reservation, sent, error, reads=1)
        except BaseException:
            self._undo(reservation)
            await self._unlock(reservation)
            raise
        self._state.confirm(reservation)
        self._state.turns.restart(uid, self._state.clock())

    async def _lock(self, reservation: Reservation) -> None:
        if self._locks is None:
            return
        try:
            await self._locks.take(reservation.node, reservation.pod)
        except BaseException:
            self._undo(reservation)
            raise

    def _undo(self, reservation: Reservation) -> None:
        """Give a reservation back, unless an earlier Binding of it may still arrive."""
        uid, node = reservation.pod.uid, reservation.node
        if not reservation.unanswered:
            self._state.release(uid)
            return
        reservation.leave_open(self._state.clock())
        if uid not in self._state.turns.holders(node):
            self._state.turns.end(uid, self._state.clock())  # it waits no more

    async def _unlock(self, reservation: Reservation) -> None:
        """Give the node's lock back after a failure; once bound it is the plugin's."""
        if self._locks is None or reservation.unanswered:
            return
        try:
            await self._locks.give_back(reservation.node, reservation.pod)
        except ClusterError as error:
            log.warning("lock of %s is kept: %s", reservation.node, error.text())

    async def _turn(self, reservation: Reservation) -> None:
        """Wait until the pod holds its node's turn, or no longer waits for it.

        Raises:
            InputError: others kept it for too long.
        """
        turns, uid, node = self._state.turns, reservation.pod.uid, reservation.node
        if turns.ask(node, uid, self._state.clock()):
            return
        future = asyncio.get_running_loop().create_future()
        self._woken[uid] = future
        try:
            async with asyncio.timeout(self._turn_wait_s):
                await future
        except TimeoutError:
            raise InputError(
                f"no turn on {node} within {self._turn_wait_s:.0f} s",
                why=f"still being allocated there: {', '.join(turns.holders(node))}",
            ) from None
        finally:
            self._woken.pop(uid, None)

    def _wake(self, uid: str) -> None:
        future = self._woken.get(uid)
        if future is not None and not future.done():
            future.set_result(None)

    async def _find_out(
        self, reservation: Reservation, sent: dict[str, Any], lost: ClusterError, *, reads: int
    ) -> None:
        """Read the pod until it is clear what became of its Binding.

        Returns if it took effect.

        Raises:
            ClusterError: it did not, or that cannot be told; in the latter case the
                reservation is kept, and ends by the pod's next attempt, by what the watch
                shows or by its time.
        """
        uid, read = reservation.pod.uid, False
        for attempt in range(reads):
            if uid in self._state.bound:
                return  # the watch was faster
            if attempt:
                await self._sleep(_READ_PAUSE_S)
            try:
                pod = await self._api.read_pod(reservation.pod.namespace, reservation.pod.name)
            except ClusterError as error:
                log.warning("%s: %s", reservation.pod, error.text())
                continue
            read = True
            if took_effect(pod, sent):
                return
            bound_elsewhere = pod is not None and (pod.get("spec") or {}).get("nodeName")
            other = pod is None or (pod.get("metadata") or {}).get("uid") != uid
            if bound_elsewhere or other:
                # No later read can show it bound by us.
                self._state.release(uid)
                raise lost
        if uid in self._state.bound:
            return
        if read and isinstance(lost, ApiError) and not reservation.unanswered:
            self._state.release(uid)  # that was an answer
            raise lost
        # Not bound yet says nothing: a server that is slow may do it later.
        reservation.leave_open(self._state.clock())
        state = "it is not bound yet" if read else "the pod cannot be read"
        raise AnswerLost(lost.what, why=f"{lost.why}; and {state}") from lost

    async def expire_turns(self) -> None:
        """Take back the turns that have lasted too long.

        The pod is marked as failed first: the plugin must not serve it once another
        pod of its node may be allocating.
        """
        for turn in self._state.turns.expired(self._state.clock()):
            try:
                if not await self._expire(turn):
                    continue
            except ClusterError as error:
                log.warning("turn of %s on %s is kept: %s", turn.uid, turn.node, error.text())
                continue
            self._state.turns.end(turn.uid, self._state.clock())

    async def _expire(self, turn: Turn) -> bool:
        """Mark the pod as failed if it still is allocating; True if the turn may end."""
        bound = self._state.bound.get(turn.uid)
        if bound is None:
            held = self._state.reservations.get(turn.uid)
            # While its Binding is out it may become allocating at any moment.
            return held is None or held.stage is not Stage.BINDING
        key = bound.pod
        try:
            await self._api.patch_pod(key.namespace, key.name, expire_patch(key.uid))
        except ApiError as error:
            if error.status == 404:
                return True
            pod = await self._api.read_pod(key.namespace, key.name)
            if pod is None or (pod.get("metadata") or {}).get("uid") != key.uid:
                return True
            annotations = (pod.get("metadata") or {}).get("annotations") or {}
            return annotations.get(names.POD_BIND_PHASE) != names.PHASE_ALLOCATING
        log.warning("%s was not allocated on %s in time: marked as failed", key, turn.node)
        self._report(key, "BindingFailed", f"no Allocate on {turn.node} in time")
        return True
