"""Follows the pods of the node: a list, then a watch, for as long as the monitor runs."""

from __future__ import annotations

import logging
import threading
import time

from testbed.stack.kubeapi import ApiError, KubeApi
from testbed.stack.monitor.pods import PodIndex

_log = logging.getLogger(__name__)

RETRY_S = 1.0


def follow_pods(api: KubeApi, node: str, pods: PodIndex, stop: threading.Event) -> None:
    """Keep the index equal to the API server's pods of a node, until told to stop."""
    path, mine = "/api/v1/pods", {"fieldSelector": f"spec.nodeName={node}"}
    complaint = ""
    while not stop.is_set():
        try:
            listed = api.get(path, mine)
            pods.replace(listed["items"])
            version = listed["metadata"]["resourceVersion"]
            complaint = ""
            while not stop.is_set():
                opened = time.monotonic()
                asked = {**mine, "resourceVersion": version, "allowWatchBookmarks": "true"}
                for event, item in api.watch(path, asked):
                    version = item["metadata"]["resourceVersion"]
                    if event != "BOOKMARK":
                        pods.apply(event, item)
                if time.monotonic() - opened < RETRY_S:
                    stop.wait(RETRY_S)  # a server that ends every watch at once
        except ApiError as error:
            # 410: the version is too old, which a new list mends; the rest is waited out.
            if error.status != 410 and error.why != complaint:
                _log.warning("pods are not followed: %s", error.text())
                complaint = error.why
            stop.wait(RETRY_S)
