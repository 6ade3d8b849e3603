import json
import tomllib

import yaml

from testbed.lab.cluster.process import control_plane, layout, node
from testbed.lab.cluster.process.plan import Plan, Service, Step
from testbed.stack import names

NODES = layout.nodes("vgpu", 2)
PROGRAMS = node.Programs(
    binaries="/mnt/cache/bin",
    front="/mnt/cache/front",
    cni="/usr/lib/cni",
    front_config=("FRONT", "/mnt/state/inside/front.conf"),
)


def outer():
    return control_plane.plan(
        token="T" * 24,
        binaries="/mnt/cache/bin",
        nodes=NODES,
        python="/usr/bin/python3",
        init="/init.py",
        relay="/relay.py",
    )


def service(plan, name):
    (found,) = [each for each in plan.services if each.name == name]
    return found


def test_a_plan_is_json():
    plan = Plan(
        status="s",
        hostname="h",
        environment={"A": "b"},
        setup=(Step(("x",)), Step(("y",), ())),
        services=(Service(name="n", argv=("a", "b"), log="l", wait=("file:/x",), once=True),),
    )
    document = json.loads(plan.json())
    assert document["setup"] == [
        {"run": ["x"], "otherwise": None},
        {"run": ["y"], "otherwise": []},
    ]
    assert document["services"][0]["argv"] == ["a", "b"]


def test_the_api_server_reaches_webhooks_and_kubelets_directly():
    argv = service(outer(), "kube-apiserver").argv
    for flag in (
        "--enable-aggregator-routing=true",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--kubelet-preferred-address-types=InternalIP",
        "--bind-address=10.99.0.1",
    ):
        assert flag in argv
    assert any(each.startswith("--kubelet-certificate-authority=") for each in argv)


def test_etcd_has_no_tcp_port():
    urls = [each for each in service(outer(), "etcd").argv if "urls" in each or "cluster=" in each]
    assert len(urls) == 5 and all("unix://" in each for each in urls)


def test_only_the_relay_gets_the_listening_socket():
    assert [each.name for each in outer().services if each.listen] == ["relay"]


def test_what_holds_namespaces_carries_the_token():
    for each in NODES:
        argv = service(outer(), each.name).argv
        assert "T" * 24 in argv and "--kill-child" in argv and argv[0] == "nsenter"


def test_no_proxy_of_the_user_reaches_the_programs(monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example.test")
    plans = [outer(), node.plan(NODES[0], NODES[1:], PROGRAMS, ["/a.tar"])]
    for plan in plans:
        assert "/usr/sbin" in plan.environment["PATH"]
        assert not any("proxy" in each.lower() for each in plan.environment)


def test_a_node_routes_to_the_others_and_hides_secrets():
    plan = node.plan(NODES[0], NODES[1:], PROGRAMS, ["/a.tar"])
    steps = [" ".join(each.run) for each in plan.setup]
    assert "ip route add 10.88.2.0/24 via 10.99.0.102" in steps
    hidden = [each.rpartition(" ")[2] for each in steps if " tmpfs " in each]
    for path in ("/home", "/root", "/run", "/tmp", "/var/lib", "/mnt/state/pki", "/mnt/state/etcd"):
        assert path in hidden
    assert hidden.index("/mnt/state/pki") > hidden.index("/run")
    made = next(each for each in plan.setup if each.run[0] == "mkdir").run
    for path in (names.DEVICE_PLUGIN_ROOT, names.HOOK_PATH, "/run/cdi"):
        assert path in made


def test_images_come_before_pods_and_are_imported_once():
    plan = node.plan(NODES[0], (), PROGRAMS, ["/a.tar", "/b.tar"])
    images = service(plan, "images")
    assert images.once and images.argv[-2:] == ("/a.tar", "/b.tar")


def test_the_kubelet_s_configuration():
    document = yaml.safe_load(node.kubelet_config(NODES[1]))
    assert document["seccompDefault"] is True
    assert document["failCgroupV1"] is False
    assert document["address"] == "10.99.0.102"
    assert document["authentication"]["anonymous"]["enabled"] is False
    assert int(document["syncFrequency"].removesuffix("s")) <= 5


def test_containerd_s_configuration_is_toml():
    document = tomllib.loads(node.containerd_config(PROGRAMS, "pause:1", "native"))
    images = document["plugins"]["io.containerd.cri.v1.images"]
    runtime = document["plugins"]["io.containerd.cri.v1.runtime"]
    assert images["snapshotter"] == "native"
    assert images["pinned_images"]["sandbox"] == "pause:1"
    assert runtime["cdi_spec_dirs"] == ["/run/cdi"]
    runc = runtime["containerd"]["runtimes"]["runc"]
    assert runc["options"]["BinaryName"] == "/mnt/cache/front"


def test_the_pod_network_is_ptp():
    document = json.loads(node.cni_config(NODES[1]))
    (plugin,) = document["plugins"]
    assert plugin["type"] == "ptp" and plugin["ipMasq"] is False
    assert plugin["ipam"]["ranges"] == [[{"subnet": "10.88.2.0/24"}]]
