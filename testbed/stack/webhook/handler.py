"""The admission decision: an AdmissionReview in, an AdmissionReview out.

Objects stay raw dicts, so that fields that we do not know survive. What a pod becomes
is computed on a copy; the answer is the difference of the two (``jsonpatch``).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from testbed.errors import CodecError, InputError
from testbed.stack.config import DeviceConfig
from testbed.stack.devices.vendor import Vendor
from testbed.stack.placement.quota import UNBOUNDED, Amount
from testbed.stack.webhook import guard
from testbed.stack.webhook.jsonpatch import difference
from testbed.stack.webhook.mutate import admit, asks_for
from testbed.stack.webhook.refusals import refuse_ephemeral

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a decision depends on beside the request.

    Attributes:
        config: The device configuration.
        writers: User names that may write the stack's own annotations and labels.
        own_environment: The namespace's administrator lets pods set the library's
            variables themselves.
        room: What the namespace's quota leaves.
    """

    config: DeviceConfig = field(default_factory=DeviceConfig)
    writers: frozenset[str] = frozenset()
    own_environment: bool = False
    room: Amount = UNBOUNDED


def review(admission_review: Mapping[str, Any], context: Context) -> Json:
    """Return the answer to an admission request.

    Raises:
        CodecError: the document is not an AdmissionReview that can be answered.
    """
    request = _request(admission_review)
    response: Json = {"uid": request["uid"], "allowed": True}
    try:
        before, after, warnings = _decide(request, context)
    except InputError as error:
        response["allowed"] = False
        response["status"] = {"code": 403, "reason": "Forbidden", "message": _one_line(error)}
    else:
        patch = difference(before, after)
        if patch:
            response["patchType"] = "JSONPatch"
            response["patch"] = base64.b64encode(json.dumps(patch).encode()).decode()
        if warnings:
            response["warnings"] = list(warnings)
    return {
        "apiVersion": admission_review.get("apiVersion") or "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": response,
    }


def asking(admission_review: Mapping[str, Any], config: DeviceConfig) -> tuple[str, Vendor] | None:
    """Return the namespace of a pod that is being created and whose cards it asks for.

    Its quota matters; whether the pod can be meant is not judged here.
    """
    request = admission_review.get("request")
    if not isinstance(request, dict) or request.get("subResource"):
        return None
    pod, namespace = request.get("object"), request.get("namespace")
    creates = request.get("operation", "CREATE") == "CREATE" and _resource(request) == "pods"
    if not creates or not isinstance(pod, dict) or not isinstance(namespace, str):
        return None
    vendor = asks_for(pod, config)
    return None if vendor is None else (namespace, vendor)


def _request(admission_review: Mapping[str, Any]) -> Json:
    request = admission_review.get("request")
    if admission_review.get("kind") != "AdmissionReview" or not isinstance(request, dict):
        raise CodecError("the body is not an AdmissionReview with a request")
    uid = request.get("uid")
    if not isinstance(uid, str) or not uid:
        raise CodecError("the admission request has no uid")
    return request


def _decide(request: Json, context: Context) -> tuple[Any, Any, tuple[str, ...]]:
    """Return the object, what it becomes, and what its author should know."""
    found, part = request.get("object"), request.get("subResource") or ""
    resource, operation = _resource(request), request.get("operation", "CREATE")
    known = (resource in ("pods", "nodes", "bindings")) and operation in ("CREATE", "UPDATE")
    if not known or (found is None and operation == "UPDATE"):
        return found, found, ()
    if not isinstance(found, dict):
        raise InputError(f"the admission request carries no {resource.removesuffix('s')}")
    if resource == "nodes":
        if operation == "CREATE" and not part and not _trusted(request, context):
            return found, guard.stripped(found, guard.node_keys(context.config)), ()
        return found, _unchanged(request, context, guard.node_keys(context.config)), ()
    if resource == "pods" and operation == "CREATE" and not part:
        clean = guard.stripped(found, guard.pod_keys(context.config))
        admitted = admit(
            clean,
            context.config,
            own_environment=context.own_environment,
            room=context.room,
        )
        return found, admitted.pod, admitted.warnings
    _unchanged(request, context, guard.pod_keys(context.config))
    if part == "ephemeralcontainers":
        refuse_ephemeral(found, context.config)
    return found, found, ()


def _unchanged(request: Json, context: Context, keys: tuple[str, ...]) -> Json:
    """Refuse a change of what only the stack may write."""
    found: Json = request["object"]
    if not _trusted(request, context):
        guard.refuse_changes(request.get("oldObject"), found, keys)
    return found


def _trusted(request: Json, context: Context) -> bool:
    user = request.get("userInfo")
    name = user.get("username") if isinstance(user, dict) else None
    return isinstance(name, str) and name in context.writers


def _resource(request: Json) -> str:
    resource = request.get("resource")
    name = resource.get("resource", "pods") if isinstance(resource, dict) else "pods"
    return name if isinstance(name, str) else ""


def _one_line(error: InputError) -> str:
    text = error.what if not error.why else f"{error.what}: {error.why}"
    return f"{text} (to fix: {error.hint})" if error.hint else text
