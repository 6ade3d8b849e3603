"""The Kubernetes client of the lab: raw objects in, raw objects out."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from testbed.errors import ClusterError, WaitTimeout
from testbed.lab import kubectl as kubectl_exec
from testbed.lab.kubectl import ExecResult
from testbed.lab.kubetypes import (
    ApiError,
    Event,
    Object,
    Objects,
    Resource,
    Unreachable,
    group_path,
    named,
)
from testbed.lab.kubewire import Wire

__all__ = ["ApiError", "Event", "ExecResult", "Kube", "Object", "Objects", "Unreachable"]

FIELD_MANAGER = "vgpu-testbed"

#: How long a command in a container may take.
EXEC_S = 60.0
_PAGE = 500

_PATCH_TYPES = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json",
}


class Kube:
    """One cluster, as the user of a kubeconfig sees it.

    Args:
        kubeconfig: The file; it is never written to.
        context: A context of it; the current one by default.
        kubectl: The program for ``exec``; the one on PATH by default.
        scratch: Where the client keeps keys in files for as long as it lives, and where
            they are left when it is killed; the folder for temporary files by default.
        as_user: In whose name requests are made; the kubeconfig's user by default, who
            must be allowed to impersonate.

    Raises:
        ClusterError: the kubeconfig cannot be used.
    """

    def __init__(
        self,
        kubeconfig: Path,
        *,
        context: str | None = None,
        kubectl: Path | None = None,
        scratch: Path | None = None,
        as_user: str = "",
    ) -> None:
        self.kubeconfig = kubeconfig
        self.context = context
        self._kubectl = kubectl
        self._wire = Wire(kubeconfig, context=context, scratch=scratch, as_user=as_user)
        self.server = self._wire.server
        self._resources: dict[str, dict[str, Resource]] = {}

    def close(self) -> None:
        """Close the connections."""
        self._wire.close()

    def __enter__(self) -> Kube:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # --- objects ---------------------------------------------------------------
    def get(self, api_version: str, kind: str, name: str, namespace: str | None = None) -> Object:
        """Return one object.

        Raises:
            ApiError: it does not exist, or may not be read.
        """
        path = self._path(api_version, kind, name, namespace)
        return self._wire.json("GET", path, what=named(kind, name, namespace) + " cannot be read")

    def find(
        self, api_version: str, kind: str, name: str, namespace: str | None = None
    ) -> Object | None:
        """Return one object, or None where it does not exist."""
        try:
            return self.get(api_version, kind, name, namespace)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def list(
        self,
        api_version: str,
        kind: str,
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
    ) -> Objects:
        """Return all objects of a kind, in one namespace or in all; each says its kind."""
        path = self._path(api_version, kind, None, namespace)
        what = f"{kind} objects cannot be listed"
        found: Objects = []
        query = {"labelSelector": labels, "fieldSelector": fields, "limit": str(_PAGE)}
        while True:
            page = self._wire.json("GET", path, what=what, query=query)
            for item in page.get("items") or []:
                # The items of a list leave out what the list itself says.
                found.append({"apiVersion": api_version, "kind": kind, **item})
            token = (page.get("metadata") or {}).get("continue")
            if not token:
                return found
            query = {**query, "continue": token}

    def create(self, manifest: Object, *, dry_run: bool = False) -> Object:
        """Create an object and return what the server made of it (or would make)."""
        meta = manifest["metadata"]
        path = self._path(
            manifest["apiVersion"], manifest["kind"], None, meta.get("namespace"), write=True
        )
        return self._wire.json(
            "POST",
            path,
            what=named(manifest["kind"], meta.get("name", ""), meta.get("namespace"))
            + " cannot be created",
            query=_write_query(dry_run),
            body=manifest,
        )

    def apply(self, manifests: Iterable[Object], *, dry_run: bool = False) -> Objects:
        """Bring objects to the given state by server-side apply, in the given order.

        Unknown fields are an error. Fields that another manager owns are taken over.
        """
        applied: Objects = []
        for manifest in manifests:
            meta = manifest["metadata"]
            name, namespace = meta["name"], meta.get("namespace")
            path = self._path(manifest["apiVersion"], manifest["kind"], name, namespace)
            applied.append(
                self._wire.json(
                    "PATCH",
                    path,
                    what=named(manifest["kind"], name, namespace) + " cannot be applied",
                    query={"force": "true", **_write_query(dry_run)},
                    body=json.dumps(manifest).encode(),
                    content_type="application/apply-patch+yaml",
                )
            )
        return applied

    def patch(
        self,
        api_version: str,
        kind: str,
        name: str,
        body: Object | Objects,
        namespace: str | None = None,
        *,
        strategy: Literal["merge", "strategic", "json"] = "merge",
        subresource: str = "",
        dry_run: bool = False,
    ) -> Object:
        """Patch an object and return the new state."""
        path = self._path(api_version, kind, name, namespace)
        if subresource:
            path += "/" + subresource
        return self._wire.json(
            "PATCH",
            path,
            what=named(kind, name, namespace) + " cannot be patched",
            query=_write_query(dry_run),
            body=body,
            content_type=_PATCH_TYPES[strategy],
        )

    def delete(
        self,
        api_version: str,
        kind: str,
        name: str,
        namespace: str | None = None,
        *,
        grace_s: int | None = None,
    ) -> bool:
        """Ask for an object's deletion; return False where it did not exist."""
        body: Object = {
            "kind": "DeleteOptions",
            "apiVersion": "v1",
            "propagationPolicy": "Background",
        }
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        path = self._path(api_version, kind, name, namespace)
        what = named(kind, name, namespace) + " cannot be deleted"
        try:
            self._wire.json("DELETE", path, what=what, body=body)
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return True

    def watch(
        self,
        api_version: str,
        kind: str,
        namespace: str | None = None,
        *,
        timeout_s: float,
        labels: str = "",
        fields: str = "",
    ) -> Iterator[Event]:
        """Yield what exists as ADDED, then every change, until the time is up.

        When the server ends or forgets the watch (410), a fresh list follows, so
        that an object can be seen as ADDED more than once; what was deleted in
        such a gap is yielded as DELETED in its last known state.
        """
        deadline = time.monotonic() + timeout_s
        path = self._path(api_version, kind, None, namespace)
        select = {"labelSelector": labels, "fieldSelector": fields}
        known: dict[str, Object] = {}
        while time.monotonic() < deadline:
            page = self._wire.json(
                "GET", path, what=f"{kind} objects cannot be listed", query=select
            )
            items = {item["metadata"]["uid"]: item for item in page.get("items") or []}
            for uid in known.keys() - items.keys():
                yield Event(kind="DELETED", object=known[uid])
            for item in items.values():
                yield Event(kind="ADDED", object={"apiVersion": api_version, "kind": kind, **item})
            known = items
            version = page["metadata"]["resourceVersion"]
            for event in self._wire.stream(path, select, version, deadline):
                if event.kind == "ERROR":  # 410 Gone: the version is too old
                    break
                uid = event.object.get("metadata", {}).get("uid", "")
                if event.kind == "DELETED":
                    known.pop(uid, None)
                elif event.kind != "BOOKMARK":
                    known[uid] = event.object
                yield event

    def wait_gone(
        self, api_version: str, kind: str, name: str, namespace: str | None, *, timeout_s: float
    ) -> None:
        """Wait until an object does not exist.

        Raises:
            WaitTimeout: it is still there; the text names its finalizers.
        """
        deadline = time.monotonic() + timeout_s
        while (found := self.find(api_version, kind, name, namespace)) is not None:
            if time.monotonic() >= deadline:
                meta, status = found["metadata"], found.get("status") or {}
                waiting = [
                    condition.get("message", "")
                    for condition in status.get("conditions") or []
                    if condition.get("status") == "True" and condition.get("message")
                ]
                raise WaitTimeout(
                    f"{named(kind, name, namespace)} still exists after {timeout_s:g} s",
                    why="; ".join(waiting) or f"finalizers: {meta.get('finalizers', [])}",
                )
            time.sleep(0.2)

    # --- pods ------------------------------------------------------------------
    def logs(
        self,
        namespace: str,
        pod: str,
        container: str | None = None,
        *,
        tail: int | None = None,
        previous: bool = False,
    ) -> str:
        """Return the log of a container."""
        query = {"container": container or "", "previous": "true" if previous else ""}
        if tail is not None:
            query["tailLines"] = str(tail)
        data = self.raw(f"/api/v1/namespaces/{quote(namespace)}/pods/{quote(pod)}/log", query)
        return data.decode(errors="replace")

    def exec(
        self,
        namespace: str,
        pod: str,
        command: Sequence[str],
        *,
        container: str | None = None,
        stdin: str | None = None,
        timeout_s: float = EXEC_S,
    ) -> ExecResult:
        """Run a command in a container; a non-zero exit status is a result, not an error.

        Raises:
            MissingTool: there is no kubectl.
            WaitTimeout: the command ran past its time.
        """
        where = kubectl_exec.Target(
            kubeconfig=self.kubeconfig,
            context=self.context,
            namespace=namespace,
            pod=pod,
            container=container,
        )
        return kubectl_exec.run(self._kubectl, where, command, stdin=stdin, timeout_s=timeout_s)

    def pod_proxy(
        self,
        namespace: str,
        pod: str,
        port: int,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        scheme: Literal["http", "https"] = "http",
    ) -> bytes:
        """GET a path of a pod's port through the API server."""
        target = f"{scheme}:{pod}:{port}"
        base = f"/api/v1/namespaces/{quote(namespace)}/pods/{quote(target, safe=':')}/proxy"
        return self.raw(f"{base}/{path.lstrip('/')}", query)

    # --- server ----------------------------------------------------------------
    def raw(self, path: str, query: Mapping[str, str] | None = None) -> bytes:
        """GET any path of the API server and return the body."""
        return self._wire.call("GET", path, what=f"{path} cannot be read", query=query)

    def version(self) -> str:
        """Return the server's version, such as ``v1.37.2``."""
        found = self._wire.json("GET", "/version", what="the server's version cannot be read")
        return str(found["gitVersion"])

    def kubectl_path(self) -> Path:
        """Return the kubectl that ``exec`` uses.

        Raises:
            MissingTool: there is none.
        """
        return kubectl_exec.locate(self._kubectl)

    # --- below -----------------------------------------------------------------
    def _path(
        self,
        api_version: str,
        kind: str,
        name: str | None,
        namespace: str | None,
        *,
        write: bool = False,
    ) -> str:
        resource = self._resource(api_version, kind)
        parts = [group_path(api_version)]
        if resource.namespaced:
            if namespace:
                parts += ["namespaces", quote(namespace)]
            elif name is not None or write:
                raise ClusterError(f"{named(kind, name or '', None)} needs a namespace")
        elif namespace and kind != "Namespace":
            raise ClusterError(f"{named(kind, name or '', None)} belongs to no namespace")
        parts.append(resource.plural)
        if name is not None:
            parts.append(quote(name))
        return "/".join(parts)

    def _resource(self, api_version: str, kind: str) -> Resource:
        known = self._resources.get(api_version)
        if known is None:
            found = self._wire.json(
                "GET", group_path(api_version), what=f"the server does not know {api_version}"
            )
            known = {
                item["kind"]: Resource(item["name"], bool(item["namespaced"]))
                for item in found["resources"]
                if "/" not in item["name"]  # sub-resources
            }
            self._resources[api_version] = known
        try:
            return known[kind]
        except KeyError:
            raise ClusterError(f"the server's {api_version} has no kind {kind}") from None


def _write_query(dry_run: bool) -> dict[str, str]:
    query = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}
    if dry_run:
        query["dryRun"] = "All"
    return query
