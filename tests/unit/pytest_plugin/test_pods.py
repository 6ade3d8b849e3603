"""Pods from keywords and from manifests."""

import pytest
import yaml

from testbed.errors import InputError
from testbed.lab.pytest_plugin import pods
from testbed.lab.pytest_plugin.pods import Wish


def pod(**wish):
    return pods.from_wish(Wish(**wish), "space", pytorch_image="torch:1", number=3)


def main(**wish):
    [container] = pod(**wish)["spec"]["containers"]
    return container


@pytest.mark.parametrize(
    ("value", "mib"),
    [
        (4096, 4096),
        ("4096", 4096),
        ("20Gi", 20480),
        ("0.5Gi", 512),
        ("512Mi", 512),
        ("1Ti", 1 << 20),
    ],
)
def test_amounts_of_memory(value, mib):
    assert pods.mib(value) == mib


@pytest.mark.parametrize("value", [0, -1, True, "", "20GB", "20G", "1Ki", "-1Gi", "much", 1.5])
def test_amounts_that_are_none_or_not_whole(value):
    with pytest.raises(InputError, match="gpumem="):
        pods.mib(value)


def test_what_keywords_say():
    found = pod(
        script="print(1)",
        gpumem="20Gi",
        gpucores=30,
        priority=1,
        policy="force",
        place="binpack",
        card="GPU-1",
        node="n1",
        env={"A": 1},
        annotations={"x": "y"},
        labels={"l": "m"},
    )
    [container] = found["spec"]["containers"]
    assert container["resources"]["limits"] == {
        "nvidia.com/gpu": "1",
        "nvidia.com/gpumem": "20480",
        "nvidia.com/gpucores": "30",
        "nvidia.com/priority": "1",
    }
    assert container["image"] == "torch:1"
    assert container["command"] == ["python3", "-u", "-c", "print(1)"]
    assert container["env"] == [
        {"name": "A", "value": "1"},
        {"name": "GPU_CORE_UTILIZATION_POLICY", "value": "force"},
    ]
    assert found["metadata"]["name"] == "pod-3"
    assert found["metadata"]["namespace"] == "space"
    assert found["metadata"]["annotations"] == {
        "x": "y",
        "hami.io/gpu-scheduler-policy": "binpack",
        "nvidia.com/use-gpuuuid": "GPU-1",
    }
    assert found["metadata"]["labels"]["l"] == "m"
    assert found["spec"]["nodeSelector"] == {"kubernetes.io/hostname": "n1"}


def test_an_image_runs_its_own_program_and_a_pod_may_have_no_card():
    found = main(image="mine:2", gpus=0)
    assert found["image"] == "mine:2"
    assert "command" not in found
    assert found["resources"]["limits"] == {}
    assert main(command=["nvidia-smi"])["image"] == "torch:1"


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ({}, "nothing to run"),
        ({"script": "x", "command": ["y"]}, "not both"),
        ({"command": "sh -c x"}, "one text"),
        ({"script": "x", "gpumem": 1, "gpumem_percentage": 1}, "not both"),
        ({"script": "x", "gpumem_percentage": 101}, "from 1 to 100"),
        ({"script": "x", "gpucores": 101}, "from 0 to 100"),
        ({"script": "x", "gpus": 17}, "from 1 to 16"),
        ({"script": "x", "gpus": True}, "from 1 to 16"),
        ({"script": "x", "priority": 2}, "from 0 to 1"),
        ({"script": "x", "policy": "froce"}, "known are force"),
        ({"script": "x", "place": "apart"}, "known are binpack"),
        ({"script": "#" * 200_000}, "command line"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_submitted(wish, words):
    with pytest.raises(InputError, match=words):
        pod(**wish)


def test_a_script_may_be_a_file(tmp_path):
    (tmp_path / "x.py").write_text("print(2)")
    assert main(script=tmp_path / "x.py")["command"][-1] == "print(2)"
    with pytest.raises(InputError, match="cannot be read"):
        pod(script=tmp_path / "y.py")


def test_a_manifest_stays_as_it_is_but_for_its_place(tmp_path):
    given = {"kind": "Pod", "metadata": {"generateName": "w-"}, "spec": {"containers": []}}
    found = pods.from_manifest(given, "space", 2)
    assert found["metadata"] == {"name": "w-2", "namespace": "space"}
    assert found["apiVersion"] == "v1"
    assert given["metadata"] == {"generateName": "w-"}  # the caller's own
    elsewhere = {**given, "metadata": {"name": "x", "namespace": "other"}}
    assert pods.from_manifest(elsewhere, "space")["metadata"]["namespace"] == "other"
    (tmp_path / "pod.yaml").write_text(yaml.safe_dump(elsewhere))
    assert pods.from_manifest(tmp_path / "pod.yaml", "space")["metadata"]["name"] == "x"


@pytest.mark.parametrize("given", [{}, {"kind": "Deployment", "spec": {}}, {"kind": "Pod"}])
def test_what_is_no_pod_is_refused(given):
    with pytest.raises(InputError, match="takes a pod"):
        pods.from_manifest(given, "space")


def test_a_file_that_is_none_is_refused(tmp_path):
    (tmp_path / "list.yaml").write_text("- 1\n")
    (tmp_path / "broken.yaml").write_text("{")
    with pytest.raises(InputError, match="takes a pod"):
        pods.from_manifest(tmp_path / "list.yaml", "space")
    for name in ("broken.yaml", "absent.yaml"):
        with pytest.raises(InputError, match="cannot be read"):
            pods.from_manifest(tmp_path / name, "space")


@pytest.mark.parametrize(
    ("test", "name"),
    [
        ("test_caps[a100-80gb]", "test-caps-a100-80gb-ab"),
        ("x" * 100, "x" * 40 + "-ab"),
        ("[]", "test-ab"),
    ],
)
def test_a_namespace_says_whose_it_is(test, name):
    assert pods.namespace_name(test, "ab") == name
