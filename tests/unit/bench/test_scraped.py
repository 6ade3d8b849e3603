"""Sums of what programs count of themselves."""

from testbed.lab.bench.scraped import mean_ms, sums, writes

TEXT = """\
# HELP calls_total Calls, by verb
calls_total{verb="a",why="x, \\"y\\" {z}"} 2
calls_total{verb="a",why=""} 3
calls_total{verb="b"} 5e+00
calls_total_more{verb="a"} 100
took_seconds_sum{verb="a"} 0.5
took_seconds_count{verb="a"} 10
plain 7
"""


def test_sums_by_and_only():
    assert sums(TEXT, "calls_total", ("verb",)) == {("a",): 5.0, ("b",): 5.0}
    assert sums(TEXT, "calls_total", verb="a") == {(): 5.0}
    assert sums(TEXT, "calls_total", ("why",), verb="a") == {('x, \\"y\\" {z}',): 2.0, ("",): 3.0}
    assert sums(TEXT, "plain") == {(): 7.0}
    assert sums(TEXT, "absent") == {}


def test_mean_of_what_never_came_is_nothing():
    assert mean_ms(TEXT, "took_seconds", verb="a") == 50
    assert mean_ms(TEXT, "took_seconds", verb="b") == 0


def test_only_what_came_for_each_pod_and_changed_something_counts():
    def text(binding, get, other):
        name = "apiserver_request_total"
        return (
            f'{name}{{code="201",resource="pods",subresource="binding",verb="POST"}} {binding}\n'
            f'{name}{{code="409",resource="pods",subresource="binding",verb="POST"}} 5\n'
            f'{name}{{code="200",resource="pods",subresource="",verb="GET"}} {get}\n'
            f'{name}{{code="200",resource="leases",subresource="",verb="PUT"}} {other}\n'
        )

    found = writes(text(10, 0, 0), text(210, 500, 1), 200)
    assert found == {"POST pods/binding": 1.0}
