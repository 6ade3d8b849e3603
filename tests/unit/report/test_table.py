"""Tables for terminal and notebook."""

from __future__ import annotations

from testbed.lab.report.table import matrix, record_html, record_text, rows_html
from testbed.lab.scenario.record import Check

from .conftest import limit, made_record


def cells(*checks: Check, control: bool = False, asserts_limit: bool = True) -> list[list[str]]:
    return matrix(
        checks, {"memory_cap": "Ends at its cap."}, control=control, asserts_limit=asserts_limit
    )[1]


def test_an_overview_counts_what_held() -> None:
    found = cells(
        limit(),
        limit(variant="async"),
        limit(pod="b"),
        limit(pod="b", variant="async", verdict="fail"),
        limit("share_card", verdict="skipped"),
        limit("share_card", pod="b", verdict="error"),
        limit("share_card", pod="b", variant="x", verdict="fail"),
        limit("placement", pod=""),
    )
    assert found == [
        ["memory_cap", "Ends at its cap.", "✓ 2 of 2 pass", "✗ 1 of 2 pass", ""],
        ["share_card", "", "- skipped", "! 0 of 2 pass", ""],
        ["placement", "", "", "", "✓ 1 of 1 pass"],
    ]


def test_a_controls_overview_is_good_where_limits_fail() -> None:
    found = cells(
        limit(verdict="fail"),
        limit(pod="b", verdict="pass"),
        limit("share_card", verdict="fail", control="any"),
        limit("lone_free", pod="b", verdict="pass", control="pass"),
        control=True,
    )
    assert found == [
        ["memory_cap", "Ends at its cap.", "✓ 1 of 1 fail, as they must",
         "! 0 of 1 fail, as they must"],
        ["share_card", "", "- either will do", ""],
        ["lone_free", "", "", "✓ 1 of 1 answer as they must"],
    ]  # fmt: skip


def test_tables_of_a_notebook_escape_what_they_show() -> None:
    page = rows_html(("A<b>", "VERDICT"), [("<script>", "✗ <i>")], {1})
    assert "<script>" not in page and "<i>" not in page and "A<b>" not in page
    assert "&lt;script&gt;" in page and "border-radius" in page
    record = made_record(reason="<script>", artifacts={"record": "<i>"}, case="<b>/x")
    page = record_html(record)
    assert "<script>" not in page and "<i>" not in page and "<b>/x" not in page


def test_a_record_in_a_terminal_ends_with_control_verdict_and_reason() -> None:
    lines = record_text(made_record(verdict="error", reason="why")).splitlines()
    assert lines[-3:] == [
        "control   ✓ without the limiter 2 of 2 limit checks fail, as they must",
        "verdict   ! error  co_location/a100-example",
        "reason    why",
    ]


def test_a_record_without_checks_has_no_empty_table() -> None:
    found = made_record(verdict="error", reason="why", checks=())
    assert record_text(found).splitlines()[-1] == "reason    why"
    assert "CHECK" not in record_text(found)


def test_a_terminal_is_told_in_short_what_held_and_in_full_what_did_not() -> None:
    long = "refused: " + "because " * 20
    held, failed = (
        record_text(made_record(checks=(Check(name="refused", verdict=verdict, workload=long),)))
        for verdict in ("pass", "fail")
    )
    assert long not in held and "because be…" in held and long.rstrip() in failed
