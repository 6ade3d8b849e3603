from __future__ import annotations

from collections.abc import Mapping

import pytest

from testbed.errors import CheckFailed, DeployError
from testbed.lab.deploy import enforcement, plugin_states, set_enforcement
from testbed.lab.deploy import switch as switch_module
from testbed.lab.deploy.common import CONFIG_KEY, CONFIG_MAP
from testbed.lab.deploy.switch import read_config
from testbed.lab.deploy.values import config_text
from testbed.lab.progress import QuietProgress
from testbed.stack import config
from testbed.stack.config import DeviceConfig
from tests.unit.deploy.fakes import FakeKube

NS = "vgpu-testbed"
QUIET = QuietProgress()


class Stack(FakeKube):
    """Plugins that follow the ConfigMap when their pod is nudged, as kubelet does.

    Attributes:
        deaf: Nudges that go by before a plugin follows (kubelet's cache lags).
        stuck: Nodes whose plugin never follows.
    """

    def __init__(self, *nodes: str, start: DeviceConfig | None = None) -> None:
        super().__init__()
        self.deaf = 0
        self.stuck: set[str] = set()
        self.history: list[tuple[str, int]] = []
        self.add(
            "ConfigMap", CONFIG_MAP, NS, data={CONFIG_KEY: config_text(start or DeviceConfig())}
        )
        self.acts: dict[str, DeviceConfig] = {}
        for node in nodes:
            self.acts[node] = start or DeviceConfig()
            labels = {"labels": {"app.kubernetes.io/name": "vgpu-plugin"}}
            self.add("Pod", f"p-{node}", NS, metadata=labels, spec={"nodeName": node})
            self.proxies[(f"p-{node}", 9396, "/healthz")] = self._healthz(node)

    def _healthz(self, node: str):  # type: ignore[no-untyped-def]
        def reply(_: Mapping[str, str]) -> object:
            now = self.acts[node]
            return {"enforcement": now.enforcement, "generation": now.generation, "cards": []}

        return reply

    def patch(self, api_version, kind, name, body, namespace=None, **options):  # type: ignore[no-untyped-def, override]
        found = super().patch(api_version, kind, name, body, namespace, **options)
        if kind == "ConfigMap":
            wanted = config.parse(found["data"][CONFIG_KEY])
            self.history.append((wanted.enforcement, wanted.generation))
        if kind == "Pod":
            node = name.removeprefix("p-")
            if self.deaf > 0:
                self.deaf -= 1
            elif node not in self.stuck:
                self.acts[node] = self.deployed()
        return found

    def deployed(self) -> DeviceConfig:
        found = read_config(self)
        assert found is not None
        return found[0]


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pause between looks, and a nudge at each third."""
    monkeypatch.setattr(switch_module, "_NUDGE_EVERY", 3)
    real = switch_module.wait_until
    monkeypatch.setattr(
        switch_module, "wait_until", lambda *a, **k: real(*a, **{**k, "interval_s": 0.0})
    )


def test_switch_waits_for_every_plugin() -> None:
    stack = Stack("n1", "n2")
    assert set_enforcement(stack, "off", QUIET) == 1
    assert {(s.node, s.enforcement, s.generation) for s in plugin_states(stack)} == {
        ("n1", "off", 1),
        ("n2", "off", 1),
    }
    # Nothing else of the configuration changed.
    assert stack.deployed() == DeviceConfig(enforcement="off", generation=1)


def test_switch_to_the_same_value_changes_nothing() -> None:
    stack = Stack("n1", start=DeviceConfig(generation=4))
    assert set_enforcement(stack, "on", QUIET) == 4
    assert stack.patches == []


def test_switch_nudges_again_where_the_first_was_lost() -> None:
    stack = Stack("n1")
    stack.deaf = 2
    set_enforcement(stack, "off", QUIET)
    nudges = [b["metadata"]["annotations"] for k, _, b in stack.patches if k == "Pod"]
    assert len(nudges) == 3
    # Each differs from the one before: else the third would be no change to kubelet.
    assert len({str(n) for n in nudges}) == 3


def test_plugin_that_does_not_follow_is_named() -> None:
    stack = Stack("n1", "n2")
    stack.stuck = {"n2"}
    with pytest.raises(DeployError) as caught:
        set_enforcement(stack, "off", QUIET, timeout_s=0.05)
    assert "n2: on, generation 0" in caught.value.why and "n1" not in caught.value.why


def test_plugin_that_cannot_read_its_configuration_says_so() -> None:
    stack = Stack("n1")
    stack.proxies[("p-n1", 9396, "/healthz")] = lambda _: {
        "enforcement": "on",
        "generation": 0,
        "config_error": "unknown key x",
    }
    with pytest.raises(DeployError, match="unknown key x"):
        set_enforcement(stack, "off", QUIET, timeout_s=0.05)


def test_nothing_deployed() -> None:
    with pytest.raises(DeployError, match="not deployed"):
        set_enforcement(FakeKube(), "off", QUIET)


def test_concurrent_switch_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    stack = Stack("n1")
    real, other = switch_module.read_config, [True]

    def racing(kube: FakeKube, *, namespace: str) -> tuple[DeviceConfig, str] | None:
        found = real(kube, namespace=namespace)
        if other:  # somebody else writes between our read and our write
            other.clear()
            text = config_text(DeviceConfig(deviceSplitCount=4, generation=1))
            kube.patch("v1", "ConfigMap", CONFIG_MAP, {"data": {CONFIG_KEY: text}}, NS)
        return found

    monkeypatch.setattr(switch_module, "read_config", racing)
    assert set_enforcement(stack, "off", QUIET) == 2
    assert stack.deployed() == DeviceConfig(deviceSplitCount=4, enforcement="off", generation=2)


def test_context_restores() -> None:
    stack = Stack("n1")
    with enforcement(stack, "off", QUIET) as generation:
        assert generation == 1
        assert stack.acts["n1"].enforcement == "off"
    assert stack.history == [("off", 1), ("on", 2)]
    assert stack.acts["n1"] == DeviceConfig(enforcement="on", generation=2)


def test_context_restores_after_a_failure() -> None:
    stack = Stack("n1")
    with pytest.raises(CheckFailed), enforcement(stack, "off", QUIET):
        raise CheckFailed("x")
    assert stack.acts["n1"].enforcement == "on"
    with pytest.raises(KeyboardInterrupt), enforcement(stack, "off", QUIET):
        raise KeyboardInterrupt
    assert stack.acts["n1"].enforcement == "on"


def test_context_restores_after_a_failed_switch() -> None:
    stack = Stack("n1", "n2")
    stack.stuck = {"n2"}
    with (
        pytest.raises(DeployError, match="enforcement off"),
        enforcement(stack, "off", QUIET, timeout_s=0.05),
    ):
        raise AssertionError("not reached")
    assert stack.history == [("off", 1), ("on", 2)]
    assert stack.acts["n1"].enforcement == "on"


def test_failure_to_restore_is_a_note_on_the_first_error() -> None:
    stack = Stack("n1")
    with pytest.raises(CheckFailed) as caught, enforcement(stack, "off", QUIET, timeout_s=0.05):
        stack.stuck = {"n1"}
        raise CheckFailed("the check")
    assert "enforcement could not be set back to on" in caught.value.__notes__[0]
    with pytest.raises(DeployError, match="enforcement on"):
        stack = Stack("n1")
        with enforcement(stack, "off", QUIET, timeout_s=0.05):
            stack.stuck = {"n1"}


def test_healthz_in_no_known_form() -> None:
    stack = Stack("n1")
    stack.proxies[("p-n1", 9396, "/healthz")] = lambda _: b"ok"
    with pytest.raises(DeployError, match="no known form"):
        plugin_states(stack)
    del stack.proxies[("p-n1", 9396, "/healthz")]
    with pytest.raises(DeployError, match="node n1 does not answer"):
        plugin_states(stack)
