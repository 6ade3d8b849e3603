"""The other questions about limits, each with the smallest case that has all its parts.

What a share is depends on how busy the host is: tests judge what the card's own book says
of it with room to spare, and of memory every byte.
"""

from __future__ import annotations

from .cases import record_of

#: Percentage points that a share may miss what was asked for here, up and down.
ABOVE, BELOW = 5.0, 15.0


def by_name(checks, name):
    return [check for check in checks if check.name == name]


def shows_the_limiter(record):
    """Every check has a verdict, and those that assert a limit fail without the limiter."""
    assert record.asserts_limit and record.control is not None
    assert record.control.verdict == "pass", record.control.reason
    without = {check.identity: check.verdict for check in record.control.checks}
    must = [check for check in record.checks if check.control == "fail"]
    assert must and all(without[check.identity] == "fail" for check in must)
    assert not [check for check in record.checks if check.verdict == "error"], record.checks
    return True


def test_a_pod_follows_its_limit_while_it_runs(testbed, tmp_path):
    case = "shares: [60, 20]\nseconds: 5.0\ngpumem: 2048\nlowered: 1024\n"
    record = record_of(testbed, tmp_path, "limit_step", case)
    assert shows_the_limiter(record)
    shares = by_name(record.checks, "followed")
    assert [check.asked for check in shares] == [60.0, 20.0]
    for check in shares:
        assert check.asked - BELOW <= check.card <= check.asked + ABOVE, check
    [refused] = by_name(record.checks, "refused")
    assert refused.verdict == "pass", refused


def test_processes_that_race_end_at_the_cap(testbed, tmp_path):
    case = (
        "pods: {a: 4096, b: 3072}\nallocators: []\nprocesses: 4\nrounds: 20\n"
        "growth_rounds: 0\nmodels: false\n"
    )
    record = record_of(testbed, tmp_path, "memory_cap", case)
    assert shows_the_limiter(record)
    assert {(check.name, check.pod) for check in record.checks} == {
        (name, pod) for name in ("filled", "card_bytes") for pod in ("a", "b")
    }
    for check in record.checks:
        assert check.verdict == "pass", check
    for check in record.control.checks:
        figure = check.card if check.name == "card_bytes" else check.workload
        assert figure > check.asked, check


def test_ways_round_the_cap_are_stopped_or_shown(testbed, tmp_path):
    # Taken away by admission; held by the region; without the library; past its hooks.
    ways = ("disable_variable", "empty_environment", "own_loader", "own_lookup")
    case = f"ways: [{', '.join(ways)}]\ngpumem: 2048\n"
    record = record_of(testbed, tmp_path, "bypass", case)
    assert shows_the_limiter(record)
    assert record.verdict == "pass", record.checks
    shown = {check.pod: check.card for check in by_name(record.checks, "shown")}
    assert shown == {"own-loader": "library-not-loaded", "own-lookup": "memory-beyond-library"}
    assert all(check.card <= 2048 for check in by_name(record.checks, "stopped"))
