"""One Allocate from question to answer, over the edges that the server brings."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Protocol

from testbed.errors import TestbedError
from testbed.stack import names
from testbed.stack.config import DeviceConfig
from testbed.stack.kubeapi import ApiError
from testbed.stack.plugin.answer import ContainerAnswer, HostPaths, container_answer
from testbed.stack.plugin.handler import KubeletView, Refuse, Serve, annotation_patch, decide
from testbed.stack.plugin.patience import Patience
from testbed.stack.plugin.pods import NodePod, node_pods

_log = logging.getLogger(__name__)

#: How often kubelet is asked for its view where a decision needs it.
_VIEWS = 3
#: For the last word on a pod that is refused; its turn ends without it, too.
_FAILED_S = 2.0


class Refused(TestbedError):
    """An Allocate that cannot be served; the text reaches the user through kubelet."""


class PodApi(Protocol):
    """The API server, as far as an Allocate needs it."""

    def list_pods(self, *, timeout_s: float) -> list[dict[str, Any]]:
        """Return the node's pods as the server has them now.

        Raises:
            ApiError: with status 0 where no answer came in time.
        """
        ...

    def patch_pod(self, pod: NodePod, metadata: dict[str, Any], *, timeout_s: float) -> None:
        """Merge metadata into a pod that is still the same object.

        Raises:
            ApiError: with status 409 where it has changed, 0 where no answer came in
                time: then nobody knows whether the write arrives.
        """
        ...


class Allocator:
    """Serves one Allocate at a time."""

    def __init__(
        self,
        *,
        api: PodApi,
        view: Callable[[], KubeletView | None],
        prepare: Callable[[ContainerAnswer], None],
        config: Callable[[], DeviceConfig],
        cards: Callable[[], AbstractSet[str]],
        paths: HostPaths,
        node: str,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._api = api
        self._view = view
        self._prepare = prepare
        self._config = config
        self._cards = cards
        self._paths = paths
        self._node = node
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._served: set[tuple[str, str]] = set()

    def kubelet_restarted(self) -> None:
        """Forget what kubelet was told: a new kubelet may ask again."""
        with self._lock:
            self._served.clear()

    def allocate(
        self, counts: Sequence[int], wanted: Callable[[], bool] = lambda: True
    ) -> tuple[ContainerAnswer, ...]:
        """Return one answer for each container request.

        A refusal fails the pod for good, so a slow API server is waited for, and a write
        without an answer is looked up: it may have arrived.

        Args:
            counts: How many devices each container request asks for.
            wanted: Whether somebody still waits for the answer.

        Raises:
            Refused: nobody can be served with certainty, or the preparation failed.
        """
        with self._lock:
            patience = Patience(self._clock, self._sleep, wanted)
            while True:
                config = self._config()
                serve = self._decided(counts, config, patience)
                answers = self._prepared(serve, config)
                if self._recorded(serve, config, patience):
                    break
            self._served |= {(serve.pod.key.uid, grant.container.name) for grant in serve.grants}
            for grant in serve.grants:
                _log.info(
                    "allocated pod=%s container=%s cards=%s enforcement=%s",
                    serve.pod.key,
                    grant.container.name,
                    ",".join(f"{s.uuid}:{s.mem_mib}MiB:{s.core_pct}%" for s in grant.shares),
                    config.enforcement,
                )
            return answers

    def _decided(self, counts: Sequence[int], config: DeviceConfig, patience: Patience) -> Serve:
        for attempt in range(1, _VIEWS + 1):
            pods = self._pods(config, patience)
            view = self._view()
            decision = decide(counts, pods, view, self._served, cards=self._cards())
            # A kubelet that was too busy to tell its view may tell it a moment later.
            silent = isinstance(decision, Refuse) and view is None
            if not silent or attempt == _VIEWS or not patience.pause():
                break
        if isinstance(decision, Serve):
            return decision
        if decision.blame is not None and decision.blame.bind_phase == names.PHASE_ALLOCATING:
            raise self._failed(decision.blame, decision.reason)
        raise Refused(decision.reason)

    def _pods(self, config: DeviceConfig, patience: Patience) -> tuple[NodePod, ...]:
        """Return the node's pods that want devices.

        Raises:
            Refused: the API server does not tell them in time.
        """
        while True:
            try:
                return node_pods(self._api.list_pods(timeout_s=patience.call_s()), config)
            except ApiError as error:
                _log.warning("%s", error.text().replace("\n", " "))
                if not patience.after(error):
                    raise Refused("the pods of this node cannot be read", why=error.why) from error

    def _prepared(self, serve: Serve, config: DeviceConfig) -> tuple[ContainerAnswer, ...]:
        answers = tuple(
            container_answer(serve.pod.key, grant, config, self._paths) for grant in serve.grants
        )
        for answer in answers:
            try:
                self._prepare(answer)
            except (TestbedError, OSError) as error:
                raise self._failed(
                    serve.pod, f"its folder on the node cannot be made: {error}"
                ) from error
        return answers

    def _recorded(self, serve: Serve, config: DeviceConfig, patience: Patience) -> bool:
        """Write down what is served; False if the pod is not what was decided upon any more.

        Raises:
            Refused: it cannot be written.
        """
        annotations = annotation_patch(serve)
        if not annotations:
            return True
        metadata: dict[str, Any] = {"annotations": annotations}
        # Servers before 1.35 take no labels with a Binding.
        if not serve.pod.labelled_node:
            metadata["labels"] = {names.POD_NODE: self._node}
        pod = serve.pod
        while True:
            try:
                self._api.patch_pod(pod, metadata, timeout_s=patience.call_s())
            except ApiError as error:
                _log.warning("%s", error.text().replace("\n", " "))
                if not patience.after(error):
                    raise self._failed(pod, error.text()) from error
            else:
                return True
            # No answer is no refusal: the write may have arrived, or may still arrive. Its
            # resource version lets only one of several through.
            found = next((p for p in self._pods(config, patience) if p.key == pod.key), None)
            if found is None or found.finished:
                return False
            if _says(found, annotations):
                _log.info("%s: the write had arrived", pod.key)
                return True
            if _promise(found) != _promise(serve.pod):
                return False
            pod = found

    def _failed(self, pod: NodePod, reason: str) -> Refused:
        """Give the pod's turn back, and return the error to raise."""
        metadata = {"annotations": {names.POD_BIND_PHASE: names.PHASE_FAILED}}
        try:
            self._api.patch_pod(pod, metadata, timeout_s=_FAILED_S)
        except ApiError as error:
            # The turn ends all the same when kubelet has failed the pod.
            _log.warning("bind-phase of %s not set to failed: %s", pod.key, error.why)
        return Refused(reason)


def _says(pod: NodePod, annotations: Mapping[str, str]) -> bool:
    """Whether a pod that was read back has what was to be written."""
    found = {names.POD_TO_ALLOCATE: pod.to_allocate, names.POD_BIND_PHASE: pod.bind_phase}
    return all(found.get(key) == value for key, value in annotations.items())


def _promise(pod: NodePod) -> tuple[str, str, str]:
    """Return what a decision upon a pod rests on, beside its containers' states."""
    return pod.to_allocate, pod.allocated, pod.bind_phase
