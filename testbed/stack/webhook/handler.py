"""The admission decision: an AdmissionReview in, an AdmissionReview out.

Pods stay raw dicts, so that fields that we do not know survive. What a pod becomes
is computed on a copy; the answer is the difference of the two (``jsonpatch``).
"""

from __future__ import annotations

import base64
import copy
import json
import posixpath
from collections.abc import Iterator, Mapping
from typing import Any

from testbed.errors import CodecError, InputError
from testbed.stack import names
from testbed.stack.config import DeviceConfig
from testbed.stack.placement.request import containers, pod_request, quantity
from testbed.stack.webhook.jsonpatch import difference

DEFAULT_SCHEDULER = "default-scheduler"


def review(admission_review: Mapping[str, Any], config: DeviceConfig) -> dict[str, Any]:
    """Return the answer to an admission request.

    Raises:
        CodecError: the document is not an AdmissionReview that can be answered.
    """
    request = admission_review.get("request")
    if admission_review.get("kind") != "AdmissionReview" or not isinstance(request, dict):
        raise CodecError("the body is not an AdmissionReview with a request")
    uid = request.get("uid")
    if not isinstance(uid, str) or not uid:
        raise CodecError("the admission request has no uid")
    response: dict[str, Any] = {"uid": uid, "allowed": True}
    try:
        patch = _decide(request, config)
    except InputError as error:
        response["allowed"] = False
        response["status"] = {"code": 403, "reason": "Forbidden", "message": _one_line(error)}
    else:
        if patch:
            response["patchType"] = "JSONPatch"
            response["patch"] = base64.b64encode(json.dumps(patch).encode()).decode()
    return {
        "apiVersion": admission_review.get("apiVersion") or "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": response,
    }


def _decide(request: Mapping[str, Any], config: DeviceConfig) -> list[dict[str, Any]]:
    pod, part = request.get("object"), request.get("subResource")
    creates = request.get("operation", "CREATE") == "CREATE" and not part
    if not _is_pod(request) or not (creates or part == "ephemeralcontainers"):
        return []
    if not isinstance(pod, dict):
        raise InputError("the admission request carries no pod")
    if creates:
        return difference(pod, mutate(pod, config))
    refuse_ephemeral(pod, config)
    return []


def _is_pod(request: Mapping[str, Any]) -> bool:
    resource = request.get("resource")
    return not isinstance(resource, dict) or resource.get("resource", "pods") == "pods"


def mutate(pod: Mapping[str, Any], config: DeviceConfig) -> dict[str, Any]:
    """Return the pod as it shall be admitted.

    Raises:
        InputError: the pod is refused; the text names the container.
    """
    changed: dict[str, Any] = copy.deepcopy(dict(pod))
    _drop_forged(changed)
    metadata = changed.get("metadata")
    labels = (metadata.get("labels") if isinstance(metadata, dict) else None) or {}
    if isinstance(labels, dict) and labels.get(names.WEBHOOK_LABEL) == names.WEBHOOK_IGNORE:
        return changed
    members = list(containers(changed))
    if not any(True for member in changed["spec"].get("containers") or ()):
        raise InputError("the pod has no containers")
    scheduler = changed["spec"].get("schedulerName") or DEFAULT_SCHEDULER
    if scheduler not in (config.schedulerName, DEFAULT_SCHEDULER):
        # Another scheduler's pod is its own affair; the device plugin serves none
        # that our extender has not promised anything (docs/architecture.md).
        return changed
    for _, container in members:
        _apply_defaults(container, config)
    asked = pod_request(changed, config)
    if asked.asks:
        _refuse_impossible(changed)
        changed["spec"]["schedulerName"] = config.schedulerName
    for (_, container), own in zip(members, asked.containers, strict=True):
        if own.count:
            _refuse_covering(container)
            _set_priority(container, config)
        elif config.overwriteEnv:
            _set_env(container, names.ENV_VISIBLE, "none")
    return changed


def refuse_ephemeral(pod: Mapping[str, Any], config: DeviceConfig) -> None:
    """Refuse a privileged debug container in a pod that holds a share of a card.

    Raises:
        InputError: there is one; the text names it.
    """
    spec = pod.get("spec")
    if not isinstance(spec, dict) or spec.get("schedulerName") != config.schedulerName:
        return
    if not any(quantity(c, config.resourceCountName) for _, c in containers(pod)):
        return
    for container in _members(spec, "ephemeralContainers"):
        if _privileged(container):
            raise InputError(_privileged_text(container, "ephemeral container"))


def _drop_forged(pod: dict[str, Any]) -> None:
    """Remove annotations and labels that only extender and plugin may write: the
    plugin hands out what they say (HAMi #3042)."""
    metadata = pod.get("metadata")
    if not isinstance(metadata, dict):
        return
    for part in ("annotations", "labels"):
        values = metadata.get(part)
        if isinstance(values, dict):
            for key in names.STACK_ANNOTATIONS:
                values.pop(key, None)


def _apply_defaults(container: dict[str, Any], config: DeviceConfig) -> None:
    count = quantity(container, config.resourceCountName)
    mem = quantity(container, config.resourceMemoryName)
    mem_pct = quantity(container, config.resourceMemoryPercentageName, most=100)
    cores = quantity(container, config.resourceCoreName, most=100)
    if count is None and config.defaultGPUNum and (mem or mem_pct or cores):
        count = config.defaultGPUNum
        _set_limit(container, config.resourceCountName, count)
    if not count or cores is not None or mem:
        return
    # The whole card's memory and no word on cores: nobody else could use the rest.
    if mem_pct == 100 or (not mem_pct and not config.defaultMemory):
        _set_limit(container, config.resourceCoreName, 100)


def _refuse_impossible(pod: Mapping[str, Any]) -> None:
    spec = pod["spec"]
    for title, key in (
        ("init container", "initContainers"),
        ("container", "containers"),
        ("ephemeral container", "ephemeralContainers"),
    ):
        for container in _members(spec, key):
            if _privileged(container):
                raise InputError(_privileged_text(container, title))
    if spec.get("nodeName"):
        raise InputError(
            f"the pod is already assigned to node {spec['nodeName']!r}",
            why="a share of a card is handed out by the scheduler",
            hint="use spec.nodeSelector instead of spec.nodeName",
        )


def _refuse_covering(container: Mapping[str, Any]) -> None:
    """A volume at one of our places is mounted after ours: the container would run without
    the library, or with a region that its processes do not share."""
    for key, field in (("volumeMounts", "mountPath"), ("volumeDevices", "devicePath")):
        for mount in _members(container, key):
            path = posixpath.normpath("/" + str(mount.get(field) or "").lstrip("/"))
            if path == names.CONTAINER_PRELOAD or f"{path}/".startswith(f"{names.CONTAINER_ROOT}/"):
                raise InputError(
                    f"container {str(container.get('name', ''))!r} mounts a volume at {path}",
                    why="that would cover what keeps the container to its share of a card",
                    hint="mount it elsewhere; libraries can be preloaded by LD_PRELOAD",
                )


def _privileged_text(container: Mapping[str, Any], title: str) -> str:
    return (
        f"{title} {str(container.get('name', ''))!r} is privileged: it would see every card "
        "of the node, so no container of its pod may ask for a share of one"
    )


def _privileged(container: Mapping[str, Any]) -> bool:
    context = container.get("securityContext")
    return isinstance(context, dict) and context.get("privileged") is True


def _members(spec: Mapping[str, Any], key: str) -> Iterator[dict[str, Any]]:
    members = spec.get(key)
    if isinstance(members, list):
        yield from (member for member in members if isinstance(member, dict))


def _set_limit(container: dict[str, Any], key: str, value: int) -> None:
    resources = container.get("resources") or {}
    limits = dict(resources.get("limits") or {})
    limits[key] = str(value)
    # The API server copies limits to requests where a key is missing there.
    container["resources"] = {**resources, "limits": limits}


def _set_priority(container: dict[str, Any], config: DeviceConfig) -> None:
    priority = quantity(container, config.resourcePriorityName, most=1)
    if priority is not None:
        _set_env(container, names.ENV_PRIORITY, str(priority))


def _set_env(container: dict[str, Any], name: str, value: str) -> None:
    env = container.get("env") or []
    if not isinstance(env, list):
        raise InputError(f"container {container.get('name', '')!r}: env is not a list")
    kept = [item for item in env if not (isinstance(item, dict) and item.get("name") == name)]
    container["env"] = [*kept, {"name": name, "value": value}]


def _one_line(error: InputError) -> str:
    text = error.what if not error.why else f"{error.what}: {error.why}"
    return f"{text} (to fix: {error.hint})" if error.hint else text
