"""One Allocate from question to answer, over the edges that the server brings."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Protocol

from testbed.errors import TestbedError
from testbed.stack import names
from testbed.stack.config import DeviceConfig
from testbed.stack.kubeapi import ApiError
from testbed.stack.plugin.answer import ContainerAnswer, HostPaths, container_answer
from testbed.stack.plugin.handler import KubeletView, Serve, annotation_patch, decide
from testbed.stack.plugin.pods import NodePod, node_pods

_log = logging.getLogger(__name__)

#: Decisions are made anew where the pod changed between reading and patching it.
_ATTEMPTS = 4


class Refused(TestbedError):
    """An Allocate that cannot be served; the text reaches the user through kubelet."""


class PodApi(Protocol):
    """The API server, as far as an Allocate needs it."""

    def list_pods(self) -> list[dict[str, Any]]:
        """Return the node's pods as the server has them now."""
        ...

    def patch_pod(self, pod: NodePod, metadata: dict[str, Any]) -> None:
        """Merge metadata into a pod that is still the same object.

        Raises:
            ApiError: with status 409 where it has changed.
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
    ) -> None:
        self._api = api
        self._view = view
        self._prepare = prepare
        self._config = config
        self._cards = cards
        self._paths = paths
        self._node = node
        self._lock = threading.Lock()
        self._served: set[tuple[str, str]] = set()

    def kubelet_restarted(self) -> None:
        """Forget what kubelet was told: a new kubelet may ask again."""
        with self._lock:
            self._served.clear()

    def allocate(self, counts: Sequence[int]) -> tuple[ContainerAnswer, ...]:
        """Return one answer for each container request.

        Raises:
            Refused: nobody can be served with certainty, or the preparation failed.
        """
        with self._lock:
            for attempt in range(_ATTEMPTS):
                config = self._config()
                serve = self._decided(counts, config)
                try:
                    answers = self._prepared(serve, config)
                    self._record(serve)
                except ApiError as error:
                    if error.status == 409 and attempt + 1 < _ATTEMPTS:
                        continue
                    raise self._failed(serve.pod, error.text()) from error
                self._served |= {
                    (serve.pod.key.uid, grant.container.name) for grant in serve.grants
                }
                for grant in serve.grants:
                    _log.info(
                        "allocated pod=%s container=%s cards=%s enforcement=%s",
                        serve.pod.key,
                        grant.container.name,
                        ",".join(f"{s.uuid}:{s.mem_mib}MiB:{s.core_pct}%" for s in grant.shares),
                        config.enforcement,
                    )
                return answers
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _decided(self, counts: Sequence[int], config: DeviceConfig) -> Serve:
        try:
            pods = node_pods(self._api.list_pods(), config)
        except ApiError as error:
            raise Refused("the pods of this node cannot be read", why=error.why) from error
        decision = decide(counts, pods, self._view(), self._served, cards=self._cards())
        if isinstance(decision, Serve):
            return decision
        if decision.blame is not None and decision.blame.bind_phase == names.PHASE_ALLOCATING:
            raise self._failed(decision.blame, decision.reason)
        raise Refused(decision.reason)

    def _prepared(self, serve: Serve, config: DeviceConfig) -> tuple[ContainerAnswer, ...]:
        answers = tuple(
            container_answer(serve.pod.key, grant, config, self._paths) for grant in serve.grants
        )
        for answer in answers:
            try:
                self._prepare(answer)
            except ApiError:
                raise
            except (TestbedError, OSError) as error:
                raise self._failed(
                    serve.pod, f"its folder on the node cannot be made: {error}"
                ) from error
        return answers

    def _record(self, serve: Serve) -> None:
        annotations = annotation_patch(serve)
        if not annotations:
            return
        metadata: dict[str, Any] = {"annotations": annotations}
        # Servers before 1.35 take no labels with a Binding.
        if not serve.pod.labelled_node:
            metadata["labels"] = {names.POD_NODE: self._node}
        self._api.patch_pod(serve.pod, metadata)

    def _failed(self, pod: NodePod, reason: str) -> Refused:
        """Give the pod's turn back, and return the error to raise."""
        try:
            self._api.patch_pod(pod, {"annotations": {names.POD_BIND_PHASE: names.PHASE_FAILED}})
        except ApiError as error:
            # The turn ends all the same when kubelet has failed the pod.
            _log.warning("bind-phase of %s not set to failed: %s", pod.key, error.why)
        return Refused(reason)
