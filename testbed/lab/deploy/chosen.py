"""What an operator chooses of a deployment: the file of ``--values``, and single keys of it.

Keys are HAMi's where its chart has one (``deviceConfig`` holds those of its device-config;
``whitelistNamespaces``, ``customURL``, ``nodeSelector``). An unknown key is an error.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import yaml

from testbed.errors import InputError, unknown_key_hint
from testbed.lab.deploy.common import CHOSEN_KEY, CHOSEN_MAP
from testbed.lab.deploy.values import StackValues
from testbed.lab.kube import Kube
from testbed.stack import config, names
from testbed.stack.config import DeviceConfig

#: Those are switched by commands of their own.
_NOT_HERE = ("enforcement", "generation")
#: Where HAMi's chart has these keys, and where they are here (its values.yaml, 2.10).
_HAMI_PLACES = {
    "devicePlugin": "deviceConfig",
    "nvidia": "deviceConfig",
    "devices.nvidia": "deviceConfig",
    "scheduler.defaultSchedulerPolicy": "deviceConfig",
    "scheduler.admissionWebhook": "admissionWebhook",
}
#: What ``--set`` takes for something else than text.
_TYPED = re.compile(r"true|false|null|[-+]?[0-9.]+|\[.*\]|\{.*\}|\".*\"|'.*'")


class CustomURL(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How HAMi's chart writes the webhook's URL, with its defaults (values.yaml, 2.10)."""

    enabled: bool = False
    host: str = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)] = 31998
    path: str = "/webhook"

    def url(self) -> str:
        """Return it as one text without the path; empty where it is not enabled.

        Raises:
            InputError: the webhook does not answer there.
        """
        if not self.enabled:
            return ""
        if self.path != "/webhook":
            raise InputError(
                f"admissionWebhook.customURL.path {self.path!r} cannot be used",
                why="the webhook answers at /webhook, and below it",
                hint="leave path out",
            )
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"https://{host}:{self.port}"


class AdmissionWebhook(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``whitelistNamespaces`` are left out by the webhook; ``customURL`` is how it is called.

    The latter is a mapping, as HAMi has it, or one text such as https://10.0.0.7:31998.
    """

    whitelistNamespaces: tuple[str, ...] = ()
    customURL: str | CustomURL = ""

    def url(self) -> str:
        """Return the URL by which the webhook is called; empty for its Service."""
        return self.customURL if isinstance(self.customURL, str) else self.customURL.url()


class Chosen(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file; every key has a default."""

    deviceConfig: dict[str, Any] = {}
    admissionWebhook: AdmissionWebhook = AdmissionWebhook()
    nodeSelector: dict[str, str] = {}
    schedulerReplicas: Annotated[int, msgspec.Meta(ge=1, le=2)] = 1
    logVerbosity: Annotated[int, msgspec.Meta(ge=0, le=10)] = 2

    def over(self, values: StackValues) -> StackValues:
        """Return a deployment's values with what is chosen here.

        Raises:
            InputError: they cannot be used.
        """
        return dataclasses.replace(
            values,
            config=self.device_config(),
            node_selector=self.nodeSelector,
            scheduler_replicas=self.schedulerReplicas,
            log_verbosity=self.logVerbosity,
            webhook_leaves_out=self.admissionWebhook.whitelistNamespaces,
            webhook_url=self.admissionWebhook.url(),
            chosen=yaml.safe_dump(msgspec.to_builtins(self), sort_keys=False),
        )

    def device_config(self) -> DeviceConfig:
        """Return the device configuration.

        Raises:
            InputError: an unknown key or a value of the wrong kind, with its path.
        """
        if wrong := [key for key in _NOT_HERE if key in self.deviceConfig]:
            raise InputError(
                f"deviceConfig.{wrong[0]} is not chosen at deployment",
                why="it changes while the stack runs, and a deployment sets it to its default",
            )
        return config.parse(yaml.safe_dump(self.deviceConfig))


def parse(text: str, source: str) -> Chosen:
    """Return what a document chooses; an empty one chooses nothing.

    Args:
        text: YAML.
        source: Names it in errors.

    Raises:
        InputError: it cannot be used; the text names the key.
    """
    try:
        found = msgspec.yaml.decode(text.encode()) if text.strip() else {}
        chosen = msgspec.convert({} if found is None else found, Chosen)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise InputError(
            f"values in {source} cannot be used",
            why=str(error),
            hint=unknown_key_hint(str(error), Chosen.__struct_fields__)
            or "docs/values.md shows all keys",
        ) from error
    try:
        chosen.device_config()
    except InputError as error:
        what = f"values in {source}: {error.what}"
        hint = error.hint or "docs/values.md shows all keys"
        raise InputError(what, why=error.why, hint=hint) from error
    return chosen


def changed(chosen: Chosen, settings: Sequence[str]) -> Chosen:
    """Return a choice with single keys set anew, each ``KEY=VALUE``.

    Args:
        chosen: What is changed.
        settings: A key is a path with dots (``\\.`` is a dot of a name), a value a number,
            ``true``, ``false``, a YAML list or mapping in brackets, else text (a number in
            quotes is text); ``null`` takes the key away, which leaves its default.

    Raises:
        InputError: one of them cannot be used; the text names it.
    """
    document: dict[str, Any] = msgspec.to_builtins(chosen)
    for setting in settings:
        path, separator, text = setting.partition("=")
        keys = [key.replace("\\.", ".") for key in re.split(r"(?<!\\)\.", path)]
        if not separator or not all(keys):
            raise InputError(
                f"--set {setting} cannot be used",
                hint="write KEY=VALUE, such as deviceConfig.deviceMemoryScaling=1.5",
            )
        _set(document, keys, _value(setting, text), setting)
    return parse(yaml.safe_dump(document), "--set")


def _value(setting: str, text: str) -> Any:
    if not _TYPED.fullmatch(text.strip()):
        return text
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(f"--set {setting} cannot be used", why=str(error)) from error


def _set(document: dict[str, Any], keys: Sequence[str], value: Any, setting: str) -> None:
    for place, here in _HAMI_PLACES.items():
        if (top := place.split(".")) == list(keys[: len(top)]) and len(keys) > len(top):
            raise InputError(
                f"--set {setting}: there is no {place} here",
                why="it is the place in HAMi's chart",
                hint=f"docs/values.md has its keys under {here}, such as {here}.{keys[-1]}",
            )
    *above, last = keys
    for key in above:
        inner = document.setdefault(key, {})
        if not isinstance(inner, dict):
            raise InputError(f"--set {setting}: {key} holds no keys")
        document = inner
    if value is None:
        document.pop(last, None)
    else:
        document[last] = value


def load(path: Path) -> Chosen:
    """Return what a file chooses.

    Raises:
        InputError: the file is missing or wrong.
    """
    try:
        return parse(path.read_text(), str(path))
    except (OSError, UnicodeDecodeError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise InputError(
            f"values in {path} cannot be read", why=why, hint="docs/values.md shows a file"
        ) from error


def kept(kube: Kube, namespace: str = names.NAMESPACE) -> Chosen | None:
    """Return what the deployment of a cluster was chosen with; None where nothing was.

    Raises:
        InputError: it cannot be used any more, by this version.
    """
    found = kube.find("v1", "ConfigMap", CHOSEN_MAP, namespace)
    if found is None:
        return None
    text = str((found.get("data") or {}).get(CHOSEN_KEY, ""))
    try:
        return parse(text, f"ConfigMap {namespace}/{CHOSEN_MAP}")
    except InputError as error:
        hint = "choose anew: testbed deploy --values FILE (an empty file: the defaults)"
        raise InputError(error.what, why=error.why, hint=hint) from error
