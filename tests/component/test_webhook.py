"""The webhook behind a real API server, by a real MutatingWebhookConfiguration."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request

import pytest

from testbed.lab.deploy import StackImages, StackValues
from testbed.lab.deploy import certificates as certs
from testbed.lab.deploy.policy import policies, writers
from testbed.lab.deploy.values import config_text
from testbed.lab.deploy.webhook import registration
from testbed.stack import names

GPU, MEM, CORES = names.RESOURCE_COUNT, names.RESOURCE_MEMORY, names.RESOURCE_CORES
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


VALUES = StackValues(images=StackImages(base="base:1", kube_scheduler="scheduler:1"))
REGISTRATION = "vgpu-testbed-webhook"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
PLURALS = {
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
}
PLUGIN = "system:serviceaccount:vgpu-testbed:vgpu-plugin"
MERGE = "application/merge-patch+json"


def path_of(found):
    return f"{ADMISSION}/{PLURALS[found['kind']]}"


def pod(name, limits, metadata=None, **spec):
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **(metadata or {})},
        "spec": {
            "containers": [{"name": "main", "image": "i", "resources": {"limits": limits}}],
            **spec,
        },
    }


@pytest.fixture
def config(tmp_path):
    """The webhook's configuration file; rewritten, it is followed."""
    path = tmp_path / "device-config.yaml"
    path.write_text(config_text(VALUES.config))
    return path


def start(name, api_server, programs, python, tools, config, serving):
    """Start a replica and return its URL."""
    cert, key = serving
    port = tools.free_port()
    programs.start(
        name, python, "-m", "testbed.stack.webhook",
        f"--cert={cert}", f"--key={key}", f"--config={config}", "--host=127.0.0.1",
        f"--port={port}", "--quota=kubeconfig", f"--kubeconfig={api_server.kubeconfig}",
        *(f"--writer={user}" for user in writers(VALUES)),
    )  # fmt: skip
    url = f"https://127.0.0.1:{port}"

    def healthy():
        programs.check()
        try:
            return get(url + "/healthz", api_server.ca)
        except OSError:
            return False

    tools.wait_for(healthy, 30, "the webhook serves")
    return url


@pytest.fixture
def webhook(api_server, programs, python, tools, config):
    """The webhook's URL; it serves, and is registered as it is deployed."""
    serving = api_server.serving("webhook")
    url = start("webhook", api_server, programs, python, tools, config, serving)
    api_server.request("POST", CONFIGURATIONS, configuration(url, api_server.ca_bundle))
    yield url
    api_server.request("DELETE", f"{CONFIGURATIONS}/{REGISTRATION}")


def configuration(url, ca_bundle, values=VALUES):
    """The deployed registration, for namespaces of these tests, by URL."""
    found = registration(values, certs.make(values.namespace))
    for hook in found["webhooks"]:
        path = hook["clientConfig"]["service"]["path"]
        hook["clientConfig"] = {"url": url + path, "caBundle": ca_bundle}
        hook["failurePolicy"] = "Fail"  # so that a silent webhook cannot pass a test
        selector = hook.setdefault("namespaceSelector", {})
        selector["matchLabels"] = {"test": "webhook"}
    return found


@pytest.fixture
def policy(api_server, tools):
    """The policies of a deployment, in force."""
    made = policies(VALUES)
    for found in made:
        api_server.request("POST", path_of(found), found)
    yield made
    for found in made:
        api_server.request("DELETE", f"{path_of(found)}/{found['metadata']['name']}")


@pytest.fixture
def create(api_server, webhook, tools):
    """Creates pods in a namespace that the webhook sees (a registration takes a moment)."""
    namespace = api_server.namespace({"test": "webhook"})
    path = f"/api/v1/namespaces/{namespace}/pods"

    def make(body, query=""):
        return api_server.request("POST", path + query, body)

    def seen():
        answer = make(pod("probe", {GPU: "1", MEM: "5"}), "?dryRun=All")
        return answer["spec"]["schedulerName"] == names.SCHEDULER_NAME

    tools.wait_for(seen, 30, "the API server calls the webhook")
    make.namespace = namespace
    yield make
    for found in api_server.pods(namespace):
        api_server.delete_pod(namespace, found["metadata"]["name"])


def get(url, ca):
    context = ssl.create_default_context(cafile=str(ca))
    with urllib.request.urlopen(url, context=context, timeout=5) as answer:
        return answer.read()


def test_pods_are_changed_as_the_api_server_stores_them(create):
    made = create(
        pod(
            "a",
            {MEM: "3000"},
            {"annotations": {names.POD_ALLOCATED: "GPU-x,NVIDIA,1,1:;", "mine": "1"}},
        )
    )
    assert made["spec"]["schedulerName"] == names.SCHEDULER_NAME
    resources = made["spec"]["containers"][0]["resources"]
    assert resources["limits"] == {GPU: "1", MEM: "3k"}
    assert resources["requests"] == resources["limits"]
    assert made["metadata"]["annotations"] == {"mine": "1"}


def test_pod_without_any_metadata_map_is_changed(create):
    made = create(pod("bare", {GPU: "1"}))
    assert made["spec"]["containers"][0]["resources"]["limits"] == {GPU: "1", CORES: "100"}


def test_refusals_reach_the_user_with_their_reason(create, tools):
    privileged = pod("p", {GPU: "1"})
    privileged["spec"]["containers"].append(
        {"name": "bad", "image": "i", "securityContext": {"privileged": True}}
    )
    for body, words in (
        (privileged, "'bad' is privileged"),
        (pod("n", {GPU: "1"}, nodeName="n1"), "already assigned"),
        (pod("q", {GPU: "1", MEM: "16Gi"}), "write 16384"),
        (pod("h", {GPU: "1", MEM: "1500m"}), "not a whole number"),
        (pod("c", {GPU: "1", CORES: "101"}), "the most is 100"),
        (pod("m", {GPU: "1", MEM: "-5"}), "is negative"),
    ):
        with pytest.raises(tools.ApiStatus) as caught:
            create(body)
        assert caught.value.status == 403
        assert words in json.loads(caught.value.body)["message"]


def test_other_schedulers_pod_is_stored_untouched(create):
    made = create(pod("o", {GPU: "1", MEM: "7"}, schedulerName="other"))
    assert made["spec"]["schedulerName"] == "other"
    assert CORES not in made["spec"]["containers"][0]["resources"]["limits"]


def test_w9_privileged_debug_container(api_server, create, tools):
    create(pod("debugged", {GPU: "1", MEM: "7"}))
    path = f"/api/v1/namespaces/{create.namespace}/pods/debugged/ephemeralcontainers"

    def debug(name, privileged):
        return api_server.request(
            "PATCH",
            path,
            {
                "spec": {
                    "ephemeralContainers": [
                        {
                            "name": name,
                            "image": "i",
                            "terminationMessagePolicy": "File",
                            "securityContext": {"privileged": privileged},
                        }
                    ]
                }
            },
            "application/strategic-merge-patch+json",
        )

    with pytest.raises(tools.ApiStatus, match="'dbg' is privileged"):
        debug("dbg", True)
    assert debug("fine", False)["spec"]["ephemeralContainers"][0]["name"] == "fine"


def post(url, ca, body):
    context = ssl.create_default_context(cafile=str(ca))
    request = urllib.request.Request(f"{url}/webhook", data=body, method="POST")
    try:
        with urllib.request.urlopen(request, context=context, timeout=20) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_bodies_of_any_kind_are_answered(api_server, webhook):
    large = pod("p", {GPU: "1"}, {"annotations": {"x": "y" * (3 << 20)}})
    review = {"kind": "AdmissionReview", "request": {"uid": "u", "object": large}}
    status, body = post(webhook, api_server.ca, json.dumps(review).encode())
    assert (status, json.loads(body)["response"]["allowed"]) == (200, True)
    for bad in (b"", b"{", b"[]", b"{}", b"\xff" * 100, b"[" * 100_000):
        assert post(webhook, api_server.ca, bad)[0] == 400
    assert post(webhook, api_server.ca, b"x" * (9 << 20))[0] == 413


def served_certificate(url):
    host, port = url.removeprefix("https://").split(":")
    return ssl.get_server_certificate((host, int(port)), timeout=5)


def test_new_certificate_is_served_without_a_restart(api_server, webhook, tools):
    before = served_certificate(webhook)
    cert, key = api_server.folder / "webhook-serving.crt", api_server.folder / "webhook-serving.key"
    old_key = key.read_bytes()
    key.write_bytes(b"half written")
    assert served_certificate(webhook) == before  # the last good one
    key.write_bytes(old_key)
    api_server.serving("webhook")
    after = served_certificate(webhook)
    assert after != before
    assert after.strip() == cert.read_text().strip()
    assert get(f"{webhook}/healthz", api_server.ca) == b"ok"
