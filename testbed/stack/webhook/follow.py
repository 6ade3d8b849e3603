"""What namespaces may still have, kept at hand: their quotas by watch, pods when asked.

Most clusters have no quota of cards, and there admission asks the API server nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from testbed.stack.config import DeviceConfig
from testbed.stack.devices.vendor import Vendor
from testbed.stack.kubeapi import ApiError, KubeApi
from testbed.stack.placement.quota import UNBOUNDED, Amount
from testbed.stack.webhook.quota import hard_of, room_of

_log = logging.getLogger(__name__)

RETRY_S = 1.0
#: Well below the time that the API server gives a webhook.
PODS_S = 2.0
_PATH = "/api/v1/resourcequotas"


class NamespaceQuotas:
    """The ResourceQuota objects of a cluster; threads may ask while one follows.

    Args:
        api: The API server.
        config: Gives the device configuration of the moment.
    """

    def __init__(self, api: KubeApi, config: Callable[[], DeviceConfig]) -> None:
        self._api = api
        self._config = config
        self._lock = threading.Lock()
        self._quotas: dict[tuple[str, str], dict[str, Any]] = {}

    def room(self, namespace: str, vendor: Vendor) -> Amount:
        """Return what a namespace has left of a vendor's cards; unbounded also where nobody
        can tell now.

        What is missed here, the scheduler refuses.
        """
        config = self._config()
        with self._lock:
            found = [quota for (where, _), quota in self._quotas.items() if where == namespace]
        quotas = [quota for quota in found if not hard_of(quota, vendor).unbounded]
        if not quotas:
            return UNBOUNDED
        try:
            listed = self._api.get(
                f"/api/v1/namespaces/{namespace}/pods", {"resourceVersion": "0"}, timeout_s=PODS_S
            )
        except ApiError as error:
            _log.warning("quota of %s is not told early: %s", namespace, error.text())
            return UNBOUNDED
        return room_of(quotas, listed["items"], namespace, config, vendor)

    def follow(self, stop: threading.Event) -> None:
        """Keep up with the API server's quotas until told to stop."""
        complaint = ""
        while not stop.is_set():
            try:
                listed = self._api.get(_PATH)
                with self._lock:
                    self._quotas = {_key(item): item for item in listed["items"]}
                version = listed["metadata"]["resourceVersion"]
                complaint = ""
                while not stop.is_set():
                    version = self._watch(version, stop)
            except ApiError as error:
                # 410: the version is too old, which a new list mends; the rest is waited out.
                if error.status != 410 and error.why != complaint:
                    _log.warning("quotas are not followed: %s", error.text())
                    complaint = error.why
                stop.wait(RETRY_S)

    def _watch(self, version: str, stop: threading.Event) -> str:
        opened = time.monotonic()
        asked = {"resourceVersion": version, "allowWatchBookmarks": "true"}
        for event, item in self._api.watch(_PATH, asked):
            version = item["metadata"]["resourceVersion"]
            if event == "BOOKMARK":
                continue
            with self._lock:
                if event == "DELETED":
                    self._quotas.pop(_key(item), None)
                else:
                    self._quotas[_key(item)] = item
        if time.monotonic() - opened < RETRY_S:
            stop.wait(RETRY_S)  # a server that ends every watch at once
        return version


def _key(quota: dict[str, Any]) -> tuple[str, str]:
    return quota["metadata"]["namespace"], quota["metadata"]["name"]
