"""What an XID means, and who may say otherwise (cases N4, N5)."""

from __future__ import annotations

import pytest

from testbed.errors import InputError
from testbed.stack.devices.xid import APPLICATION_XIDS, xid_policy


def test_built_in_table() -> None:
    policy = xid_policy({}, "unhealthy", {})
    assert {policy.action(xid) for xid in APPLICATION_XIDS} == {"ignore"}
    assert policy.action(94) == "contained" and policy.action(109) == "ignore"
    assert [policy.action(xid) for xid in (48, 63, 74, 79, 95, 119, 999)] == ["unhealthy"] * 7


def test_configuration_changes_single_errors_and_the_rest() -> None:
    policy = xid_policy({94: "unhealthy", 63: "ignore"}, "contained", {})
    assert [policy.action(xid) for xid in (94, 63, 31, 79)] == [
        "unhealthy",
        "ignore",
        "ignore",
        "contained",
    ]


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"DP_DISABLE_HEALTHCHECKS": "all"}, ["ignore", "ignore", "ignore"]),
        ({"DP_DISABLE_HEALTHCHECKS": "xids"}, ["ignore", "ignore", "ignore"]),
        ({"DP_DISABLE_HEALTHCHECKS": "79, 48"}, ["ignore", "ignore", "contained"]),
        ({"DP_ENABLE_HEALTHCHECKS": "13,94"}, ["unhealthy", "unhealthy", "unhealthy"]),
        (
            {"DP_DISABLE_HEALTHCHECKS": "all", "DP_ENABLE_HEALTHCHECKS": "79"},
            ["unhealthy", "ignore", "ignore"],
        ),
        (
            {"DP_DISABLE_HEALTHCHECKS": "79", "DP_ENABLE_HEALTHCHECKS": "all"},
            ["unhealthy", "unhealthy", "unhealthy"],
        ),
        ({"DP_DISABLE_HEALTHCHECKS": ""}, ["unhealthy", "unhealthy", "contained"]),
    ],
)
def test_nvidias_variables_go_before_and_enable_wins(
    environ: dict[str, str], expected: list[str]
) -> None:
    policy = xid_policy({}, "unhealthy", environ)
    assert [policy.action(xid) for xid in (79, 48, 94)] == expected


@pytest.mark.parametrize("text", ["79;48", "ecc", "-1", "7.9"])
def test_a_mistyped_variable_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="DP_DISABLE_HEALTHCHECKS") as caught:
        xid_policy({}, "unhealthy", {"DP_DISABLE_HEALTHCHECKS": text})
    assert "48,79" in caught.value.hint
