"""What an operator chooses of a deployment, in a file that is kept in the cluster."""

from __future__ import annotations

import base64

import pytest
import yaml
from cryptography import x509

from testbed.errors import InputError
from testbed.lab.deploy import StackImages, StackValues, render
from testbed.lab.deploy.chosen import Chosen, changed, kept, load, parse
from testbed.stack import config
from testbed.stack.certificates import sets as certs

IMAGES = StackImages(base="testbed/base:1", kube_scheduler="testbed/kube-scheduler:1")
PLAIN = StackValues(images=IMAGES)
FILE = """
deviceConfig:
  gpuSchedulerPolicy: mutex,binpack
  vendors: [nvidia, hygon]
admissionWebhook:
  whitelistNamespaces: [monitoring, ci]
  customURL: https://10.0.0.7:31998
nodeSelector: {gpu: "on"}
schedulerReplicas: 2
logVerbosity: 4
"""


def manifests(values):
    found = render(values, certs.make(values.namespace, hosts=values.webhook_hosts))
    return {(m["kind"], m["metadata"]["name"]): m for m in found}


class Cluster:
    def __init__(self, found):
        self.found = found

    def find(self, _version, kind, name, _namespace):
        return self.found.get((kind, name))


def test_every_choice_is_in_the_manifests():
    values = parse(FILE, "a file").over(PLAIN)
    found = manifests(values)
    document = found["ConfigMap", "vgpu-device-config"]["data"]["device-config.yaml"]
    device = config.parse(document)
    assert (device.gpuSchedulerPolicy, device.vendors) == ("mutex,binpack", ("nvidia", "hygon"))
    scheduler = found["Deployment", "vgpu-scheduler"]["spec"]
    assert scheduler["replicas"] == 2
    assert "-v=4" in scheduler["template"]["spec"]["containers"][1]["command"]
    plugin = found["DaemonSet", "vgpu-plugin"]["spec"]["template"]["spec"]
    assert plugin["nodeSelector"] == {"gpu": "on"}


def test_namespaces_are_left_out_by_the_webhook_and_held_by_the_policies():
    found = manifests(parse(FILE, "a file").over(PLAIN))
    plain = manifests(PLAIN)
    hooks = found["MutatingWebhookConfiguration", "vgpu-testbed-webhook"]["webhooks"]
    by_name = {
        hook["name"].partition(".")[0]: [
            each["values"]
            for each in hook.get("namespaceSelector", {}).get("matchExpressions", [])
            if each["key"] == "kubernetes.io/metadata.name"
        ]
        for hook in hooks
    }
    left_out = ["kube-system", "vgpu-testbed", "monitoring", "ci"]
    assert by_name["pods"] == by_name["ephemeral"] == [left_out]
    assert by_name["own-keys"] == []  # forged keys are refused everywhere
    policy = ("ValidatingAdmissionPolicy", "vgpu-testbed-own-keys")
    assert plain[policy]["spec"]["matchConstraints"] == found[policy]["spec"]["matchConstraints"]


def test_a_url_is_called_and_its_host_is_in_the_certificate_also_when_renewed():
    values = parse(FILE, "a file").over(PLAIN)
    found = manifests(values)
    for hook in found["MutatingWebhookConfiguration", "vgpu-testbed-webhook"]["webhooks"]:
        config = hook["clientConfig"]
        assert "service" not in config
        assert config["url"].startswith("https://10.0.0.7:31998/webhook")
    pem = base64.b64decode(found["Secret", "vgpu-webhook-tls"]["data"]["tls.crt"])
    extensions = x509.load_pem_x509_certificate(pem).extensions
    san = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(ip) for ip in san.get_values_for_type(x509.IPAddress)] == ["10.0.0.7"]
    job = found["CronJob", "vgpu-certificates"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert "--host=10.0.0.7" in job["containers"][0]["command"]
    # A set that was made before the URL was chosen does not serve it.
    old = certs.make("vgpu-testbed")
    assert certs.usable(old, "vgpu-testbed")
    assert not certs.usable(old, "vgpu-testbed", hosts=values.webhook_hosts)


def test_the_choice_is_kept_in_the_cluster_and_read_again():
    chosen = parse(FILE, "a file")
    assert kept(Cluster(manifests(chosen.over(PLAIN)))) == chosen
    # Where nobody chose there is nothing, and an empty file is a choice.
    assert kept(Cluster(manifests(PLAIN))) is None
    assert kept(Cluster(manifests(parse("", "a file").over(PLAIN)))) == Chosen()


def test_a_choice_that_this_version_does_not_know_says_how_to_go_on():
    old = {"data": {"values.yaml": "gone: 1"}}
    with pytest.raises(InputError, match="vgpu-values") as caught:
        kept(Cluster({("ConfigMap", "vgpu-values"): old}))
    assert "--values" in caught.value.text()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("schedulerReplica: 2", "did you mean schedulerReplicas?"),
        ("schedulerReplicas: 3", "schedulerReplicas"),
        ("deviceConfig: {gpuPolicy: x}", "gpuPolicy"),
        ("deviceConfig: {gpuCorePolcy: force}", "did you mean gpuCorePolicy?"),
        ("deviceConfig: {gpuSchedulerPolicy: first}", "first"),
        ("deviceConfig: {enforcement: off}", "enforcement"),
        ("deviceConfig: {generation: 5}", "generation"),
        ("admissionWebhook: {customUrl: x}", "customUrl"),
        ("admissionWebhook: {customURL: {enabeld: true}}", "enabeld"),
        ("admissionWebhook: {customURL: {enabled: true, port: 0}}", "port"),
        ("nodeSelector: [gpu]", "nodeSelector"),
        ("- a", "values in a file"),
        ("a: [", "values in a file"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused_with_its_key(text, words):
    with pytest.raises(InputError) as caught:
        parse(text, "a file")
    assert words in caught.value.text() and "values in a file" in caught.value.what


@pytest.mark.parametrize(
    ("webhook", "words"),
    [
        ({"customURL": "http://10.0.0.7"}, "URL"),
        ({"customURL": "https://10.0.0.7/path"}, "URL"),
        ({"customURL": "10.0.0.7:443"}, "URL"),
        ({"customURL": {"enabled": True, "path": "/other"}}, "path"),
        ({"customURL": {"enabled": True, "host": "a b"}}, "URL"),
        ({"whitelistNamespaces": ["Not_A_Name"]}, "Not_A_Name"),
    ],
)
def test_what_no_api_server_takes_is_refused(webhook, words):
    chosen = parse(yaml.safe_dump({"admissionWebhook": webhook}), "a file")
    with pytest.raises(InputError, match=words):
        chosen.over(PLAIN)


def test_a_missing_file_is_one_line(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        load(tmp_path / "none.yaml")
    path = tmp_path / "values.yaml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="cannot be read"):
        load(path)


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("deviceConfig.deviceMemoryScaling=1.5", {"deviceMemoryScaling": 1.5}),
        ("deviceConfig.preemption=false", {"preemption": False}),
        ("deviceConfig.gpuCorePolicy=force", {"gpuCorePolicy": "force"}),
        ("deviceConfig.vendors=[nvidia, hygon]", {"vendors": ["nvidia", "hygon"]}),
        ("deviceConfig.xidPolicy={94: unhealthy}", {"xidPolicy": {94: "unhealthy"}}),
        ("deviceConfig={preemption: false}", {"preemption": False}),
    ],
)
def test_one_key_is_set_as_it_would_be_in_a_file(setting, expected):
    assert changed(Chosen(), [setting]) == Chosen(deviceConfig=expected)


def test_keys_go_over_what_was_chosen_before_and_null_takes_one_away():
    before = parse(FILE, "a file")
    found = changed(
        before,
        [
            "deviceConfig.vendors=null",
            "schedulerReplicas=1",
            "nodeSelector.example\\.com/cards=on",
            'nodeSelector.rack="7"',
            "admissionWebhook.customURL=",
        ],
    )
    assert found.deviceConfig == {"gpuSchedulerPolicy": "mutex,binpack"}
    assert found.nodeSelector == {"gpu": "on", "example.com/cards": "on", "rack": "7"}
    assert (found.schedulerReplicas, found.logVerbosity) == (1, before.logVerbosity)
    assert found.admissionWebhook.customURL == ""
    assert found.admissionWebhook.whitelistNamespaces == ("monitoring", "ci")
    assert changed(before, []) == before
    assert changed(found, ["deviceConfig=null", "nodeSelector=null"]).deviceConfig == {}


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("deviceConfig.deviceMemoryScaling", "KEY=VALUE"),
        ("=1", "KEY=VALUE"),
        ("deviceConfig..a=1", "KEY=VALUE"),
        ("deviceConfig.deviceMemoryScalling=2", "deviceMemoryScalling"),
        ("deviceConfig.deviceMemoryScaling=0", "deviceMemoryScaling"),
        ("deviceConfig.deviceMemoryScaling=much", "deviceMemoryScaling"),
        ("deviceConfig.deviceSplitCount=0", "deviceSplitCount"),
        ("deviceConfig.enforcement=off", "enforcement"),
        ("schedulerReplicas.x=1", "schedulerReplicas holds no keys"),
        ("deviceConfig.vendors=[nvidia, {]", "vendors"),
        ("nodeSelector.rack=7", "nodeSelector"),
        # Where HAMi's users would look for them first.
        ("devicePlugin.deviceMemoryScaling=2", "deviceConfig.deviceMemoryScaling"),
        ("devices.nvidia.gpuCorePolicy=force", "deviceConfig.gpuCorePolicy"),
        ("scheduler.defaultSchedulerPolicy.gpuSchedulerPolicy=mutex", "gpuSchedulerPolicy"),
    ],
)
def test_a_key_that_cannot_be_meant_is_refused_with_its_place(setting, words):
    with pytest.raises(InputError) as caught:
        changed(Chosen(), [setting])
    assert words in caught.value.text()


@pytest.mark.parametrize(
    ("custom", "url"),
    [
        ("https://10.0.0.7:31998", "https://10.0.0.7:31998"),
        # As HAMi's chart has it, which says it as a mapping.
        ({"enabled": True, "host": "10.0.0.7", "port": 31998, "path": "/webhook"},
         "https://10.0.0.7:31998"),
        ({"enabled": True, "host": "fd00::7"}, "https://[fd00::7]:31998"),
        ({"enabled": True}, "https://127.0.0.1:31998"),
        ({"enabled": False, "host": "10.0.0.7"}, ""),
        ({}, ""),
        ("", ""),
    ],
)  # fmt: skip
def test_the_webhooks_url_is_one_text_or_hamis_mapping(custom, url):
    chosen = parse(yaml.safe_dump({"admissionWebhook": {"customURL": custom}}), "a file")
    values = chosen.over(PLAIN)
    assert values.webhook_url == url
    assert parse(values.chosen, "what is kept").over(PLAIN).webhook_url == url
    found = manifests(values)
    (hooks,) = [m["webhooks"] for (kind, _), m in found.items() if kind.startswith("Mutating")]
    where = [hook["clientConfig"].get("url", "") for hook in hooks]
    assert [text.partition("/webhook")[0] for text in where] == [url] * len(hooks)
