"""What a killed run leaves on a testbed is gone before the next one measures."""

from __future__ import annotations

from unittest.mock import MagicMock, call

import pytest

from testbed.errors import DeployError
from testbed.lab.deploy import PluginState
from testbed.lab.progress import QuietProgress
from testbed.lab.scenario import leftovers
from testbed.lab.scenario.simulated import LABEL
from testbed.stack.config import DeviceConfig


def world(monkeypatch, *, config="on", plugin="on", generation=3, silent=False):
    """Return the API's double and the switch's."""
    kube, switch = MagicMock(), MagicMock()
    kube.list.return_value = []

    def plugin_states(_):
        if silent:
            raise DeployError("plugin p does not answer")
        return (PluginState(node="n", pod="p", enforcement=plugin, generation=generation),)

    deployed = DeviceConfig(enforcement=config, generation=3)
    monkeypatch.setattr(leftovers, "read_config", lambda _: (deployed, "1"))
    monkeypatch.setattr(leftovers, "plugin_states", plugin_states)
    monkeypatch.setattr(leftovers, "set_enforcement", switch)
    return kube, switch


@pytest.mark.parametrize(
    "found",
    [{"config": "off"}, {"plugin": "off"}, {"generation": 2}, {"silent": True}],
)
def test_enforcement_that_may_be_off_is_switched_on(monkeypatch, found):
    kube, switch = world(monkeypatch, **found)
    progress = QuietProgress()
    leftovers.tidy(kube, progress)
    switch.assert_called_once_with(kube, "on", progress)


def test_a_testbed_in_order_is_left_alone(monkeypatch):
    kube, switch = world(monkeypatch)
    leftovers.tidy(kube, QuietProgress())
    switch.assert_not_called()
    kube.delete.assert_not_called()


def test_the_last_trial_s_namespace_on_its_way_out_is_no_leftover(monkeypatch):
    kube, _ = world(monkeypatch)
    going = {"metadata": {"name": "trial-1", "deletionTimestamp": "2026-01-01T00:00:00Z"}}
    kube.list.side_effect = lambda version, kind, *_, **__: [going] if kind == "Namespace" else []
    progress = MagicMock()
    leftovers.tidy(kube, progress)
    progress.step.assert_not_called()
    # One that still has pods is waited for, and not deleted twice.
    kube.list.side_effect = lambda version, kind, *_, **__: {
        "Namespace": [going],
        "Pod": [{"metadata": {"name": "a"}}],
    }.get(kind, [])
    leftovers.tidy(kube, progress)
    kube.delete.assert_not_called()
    kube.wait_gone.assert_called_once()


def test_pods_of_earlier_trials_are_gone_before_it_returns(monkeypatch):
    kube, _ = world(monkeypatch)

    def listed(version, kind, namespace=None, *, labels=""):
        if kind == "Namespace":
            assert labels == leftovers.TRIAL_LABEL
            return [{"metadata": {"name": "trial-1"}}]
        if kind == "Node":
            return []
        return [{"metadata": {"name": "a"}}]

    kube.list.side_effect = listed
    leftovers.tidy(kube, QuietProgress())
    kube.delete.assert_called_once_with("v1", "Namespace", "trial-1")
    assert kube.wait_gone.mock_calls == [call("v1", "Pod", "a", "trial-1", timeout_s=90.0)]


def test_simulated_nodes_of_a_killed_run_go_with_their_pods(monkeypatch):
    kube, _ = world(monkeypatch)
    pod = {"metadata": {"name": "a", "namespace": "trial-1"}}

    def listed(version, kind, namespace=None, *, labels="", fields=""):
        if kind == "Node":
            assert labels == LABEL
            return [{"metadata": {"name": "sim-1"}}]
        return [pod] if fields == "spec.nodeName=sim-1" else []

    kube.list.side_effect = listed
    leftovers.tidy(kube, QuietProgress())
    assert kube.delete.mock_calls == [
        # No kubelet would ever confirm its end.
        call("v1", "Pod", "a", "trial-1", grace_s=0),
        call("v1", "Node", "sim-1"),
    ]
