"""A stand-in for ``Kube`` that keeps objects in memory."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from typing import Any

from testbed.lab.kube import ApiError, Kube

Object = dict[str, Any]


def not_found(what: str) -> ApiError:
    return ApiError(what, status=404, reason="NotFound", message=f"{what} not found")


class FakeKube(Kube):
    """Objects by (kind, namespace, name); pods' ports answer by a function."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str | None, str], Object] = {}
        self.proxies: dict[tuple[str, int, str], Callable[[Mapping[str, str]], object]] = {}
        self.patches: list[tuple[str, str, Object]] = []
        self.log: dict[str, str] = {}
        self.version_count = 0

    def add(self, kind: str, name: str, namespace: str | None = None, **fields: Any) -> Object:
        meta = {"name": name, **fields.pop("metadata", {})}
        if namespace:
            meta["namespace"] = namespace
        self.version_count += 1
        meta["resourceVersion"] = str(self.version_count)
        found = {"kind": kind, "metadata": meta, **fields}
        self.objects[(kind, namespace, name)] = found
        return found

    def get(self, api_version: str, kind: str, name: str, namespace: str | None = None) -> Object:
        try:
            return copy.deepcopy(self.objects[(kind, namespace, name)])
        except KeyError:
            raise not_found(f"{kind} {name}") from None

    def list(  # type: ignore[override]
        self,
        api_version: str,
        kind: str,
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
    ) -> list[Object]:
        wanted = dict(item.split("=") for item in labels.split(",") if item)
        return [
            copy.deepcopy(found)
            for (k, ns, _), found in self.objects.items()
            if k == kind
            and namespace in (None, ns)
            and wanted.items() <= found["metadata"].get("labels", {}).items()
        ]

    def patch(  # type: ignore[override]
        self,
        api_version: str,
        kind: str,
        name: str,
        body: Object,
        namespace: str | None = None,
        **options: Any,
    ) -> Object:
        found = self.objects.get((kind, namespace, name))
        if found is None:
            raise not_found(f"{kind} {name}")
        self.patches.append((kind, name, copy.deepcopy(body)))
        wanted = body.get("metadata", {}).get("resourceVersion")
        if wanted not in (None, found["metadata"]["resourceVersion"]):
            raise ApiError("x", status=409, reason="Conflict", message="changed meanwhile")
        _merge(found, body)
        self.version_count += 1
        found["metadata"]["resourceVersion"] = str(self.version_count)
        return copy.deepcopy(found)

    def logs(
        self,
        namespace: str,
        pod: str,
        container: str | None = None,
        *,
        tail: int | None = None,
        previous: bool = False,
    ) -> str:
        return self.log[f"{pod}/{container}/{'previous' if previous else 'now'}"]

    def pod_proxy(
        self,
        namespace: str,
        pod: str,
        port: int,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        scheme: str = "http",
    ) -> bytes:
        try:
            answer = self.proxies[(pod, port, path)](query or {})
        except KeyError:
            raise not_found(f"pod {pod}") from None
        return answer if isinstance(answer, bytes) else json.dumps(answer).encode()


def _merge(target: Object, patch: Object) -> None:
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict):
            _merge(target.setdefault(key, {}), value)
        else:
            target[key] = value
