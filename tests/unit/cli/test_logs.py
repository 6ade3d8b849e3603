"""Whose log is meant, since when, and how it is followed."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import pytest

from testbed.errors import InputError
from testbed.lab import logs

FILES = {
    name: Path(name)
    for name in (
        *("etcd", "kube-apiserver", "kube-scheduler", "vgpu-node-1", "vgpu-node-1-kubelet"),
        *("vgpu-node-2", "vgpu-node-2-kubelet", "vgpu-node-2-kube-proxy"),
    )
}
PODS = [("default", "a"), ("other", "a"), ("other", "b"), ("vgpu-testbed", "vgpu-plugin-x")]
NOW = dt.datetime(2026, 11, 29, 12, 0, 0).astimezone()


def found(word, namespace=""):
    return logs.find(word, FILES, namespace=namespace, pods=PODS)


@pytest.mark.parametrize(
    ("word", "files"),
    [
        ("etcd", ["etcd"]),
        ("kubelet", ["vgpu-node-1-kubelet", "vgpu-node-2-kubelet"]),
        ("vgpu-node-2-kubelet", ["vgpu-node-2-kubelet"]),
        ("apiserver", ["kube-apiserver"]),
        ("kube-apiserver", ["kube-apiserver"]),
        ("proxy", ["vgpu-node-2-kube-proxy"]),
        ("init", ["vgpu-node-1", "vgpu-node-2"]),
        ("kube-scheduler", ["kube-scheduler"]),
    ],
)
def test_processes_of_the_cluster(word, files):
    assert list(found(word).files) == files


def test_components_of_the_stack_are_pods():
    assert found("extender").container == "extender"
    # The stack's own scheduler, not the cluster's.
    assert found("scheduler").container == "kube-scheduler"
    assert found("plugin").labels == "app.kubernetes.io/name=vgpu-plugin"


def test_the_components_are_those_of_the_manifests():
    from testbed.lab.deploy import StackImages, StackValues, render
    from testbed.stack.certificates.sets import make

    values = StackValues(images=StackImages(base="b:1", kube_scheduler="k:1"))
    seen = set()
    for item in render(values, make("vgpu-testbed")):
        template = item.get("spec", {}).get("template", {}) if isinstance(item, dict) else {}
        if template:
            label = template["metadata"]["labels"]["app.kubernetes.io/name"]
            seen |= {(label, each["name"]) for each in template["spec"]["containers"]}
    assert seen == set(logs.STACK.values())


def test_pods():
    assert found("b") == logs.Pods(namespace="other", pod="b")
    assert found("other/a") == logs.Pods(namespace="other", pod="a")
    assert found("a", "default") == logs.Pods(namespace="default", pod="a")
    with pytest.raises(InputError, match="several namespaces"):
        found("a")
    with pytest.raises(InputError, match="did you mean kubelet"):
        found("kubelt")
    with pytest.raises(InputError, match="in default"):
        found("b", "default")


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("5m", 300), ("1h30m", 5400), ("1.5h", 5400)]
)
def test_lengths_of_time(text, seconds):
    assert logs.parse_since(text) == seconds


@pytest.mark.parametrize("text", ["", "x", "5w", "-5m", "5m ago", "m"])
def test_what_is_no_length_of_time(text):
    with pytest.raises(InputError, match="no length of time"):
        logs.parse_since(text)


@pytest.mark.parametrize(
    ("line", "when"),
    [
        ("I1129 11:59:02.021509      68 a.go:1] x", dt.datetime(2026, 11, 29, 11, 59, 2)),
        ("E1231 23:59:59.021509      68 a.go:1] x", dt.datetime(2025, 12, 31, 23, 59, 59)),
        ("11:58:59 images ended with 0", dt.datetime(2026, 11, 29, 11, 58, 59)),
    ],
)
def test_local_times(line, when):
    assert logs.stamp(line, NOW) == when.timestamp()


@pytest.mark.parametrize(
    "line",
    [
        'time="2026-11-29T10:00:58.644345768Z" level=info msg="starting containerd"',
        '{"level":"warn","ts":"2026-11-29T10:00:58.644345Z","msg":"x"}',
    ],
)
def test_universal_times(line):
    when = dt.datetime(2026, 11, 29, 10, 0, 58, 644345, tzinfo=dt.UTC)
    assert logs.stamp(line, NOW) == pytest.approx(when.timestamp(), abs=1e-6)


@pytest.mark.parametrize(
    "line", ["", "\taddress: 1", "I9999 99:99:99 x", "time=never", "25:00:00 x"]
)
def test_lines_without_a_time(line):
    assert logs.stamp(line, NOW) is None


def test_lines_without_a_time_go_with_the_one_before():
    lines = ["\tlost", "10:00:00 old", "\told too", "11:00:00 new", "\tnew too"]
    assert list(logs.recent(lines, NOW.timestamp() - 2 * 3600 + 1, NOW)) == lines[3:]
    assert list(logs.recent(lines, NOW.timestamp(), NOW)) == []


def test_the_last_lines_of_a_long_log(tmp_path):
    path = tmp_path / "long.log"
    path.write_text("".join(f"line {i} {'x' * 100}\n" for i in range(5000)))
    end = logs.size_of(path)
    assert [line.split()[1] for line in logs.lines_of(path, end=end, tail=3)] == [
        *("4997", "4998", "4999")
    ]
    assert len(logs.lines_of(path, end=end, tail=None)) == 5000
    assert len(logs.lines_of(path, end=end, tail=9999)) == 5000
    assert logs.lines_of(path, end=end, tail=0) == []
    assert logs.lines_of(tmp_path / "gone", end=0, tail=3) == []


def test_following_misses_nothing_and_sees_a_log_that_begins_anew(tmp_path):
    path, other = tmp_path / "a.log", tmp_path / "b.log"
    path.write_text("before\n")
    files = {"a": path, "b": other}
    ends = {name: logs.size_of(each) for name, each in files.items()}
    with path.open("a") as file:
        file.write("between\nhal")  # written while the old lines were printed
    seen, steps = [], iter(["f\nlast\n", "anew", ""])

    def stop():
        step = next(steps)
        if step == "anew":
            path.write_text("x\n")
            other.write_text("y\n")
        elif step:
            with path.open("a") as file:
                file.write(step)
        return not step

    for item in logs.follow(files, ends, stop):
        seen.append(item)
    assert seen == [("a", "between"), ("a", "half"), ("a", "last"), ("a", "x"), ("b", "y")]


def test_what_kubectl_is_told():
    arguments = logs.kubectl_arguments(found("plugin"), since_s=90.0, tail=5, following=True)
    assert arguments[:4] == ["logs", "-n", "vgpu-testbed", "--tail=5"]
    assert {"--since=90s", "-f", "--prefix", "--max-log-requests=64"} <= set(arguments)
    assert logs.kubectl_arguments(found("b"))[3:] == [
        "--tail=-1",
        "b",
        "--all-containers",
        "--prefix",
    ]


def test_one_document_a_line():
    marked = logs.split_prefix("[pod/p/c] text [x]", "s")
    assert json.loads(logs.as_json(*marked)) == {"source": "p/c", "line": "text [x]"}
    assert logs.split_prefix("text", "s") == ("s", "text")
