"""The webhook behind a real API server, by a real MutatingWebhookConfiguration."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import urllib.error
import urllib.request

import pytest
import trustme

from testbed.lab.deploy import StackImages, StackValues
from testbed.lab.deploy.policy import policies, writers
from testbed.lab.deploy.values import config_text
from testbed.lab.deploy.webhook import registration
from testbed.stack import names
from testbed.stack.certificates import sets as certs
from testbed.stack.config import DeviceConfig

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

    tools.wait_for(healthy, 120, "the webhook serves")
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
        hook["timeoutSeconds"] = 30  # the most: a busy machine is not a silent webhook
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

    tools.wait_for(seen, 120, "the API server calls the webhook")
    make.namespace = namespace
    yield make
    for found in api_server.pods(namespace):
        api_server.delete_pod(namespace, found["metadata"]["name"])


def get(url, ca):
    context = ssl.create_default_context(cafile=str(ca))
    with urllib.request.urlopen(url, context=context, timeout=30) as answer:
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
        with urllib.request.urlopen(request, context=context, timeout=240) as answer:
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
    return ssl.get_server_certificate((host, int(port)), timeout=30)


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


# --- what only the stack may write -------------------------------------------------------


@pytest.fixture
def as_plugin(api_server):
    """Calls the API server as the plugin's account; rights are not what is tested."""
    cert, key = api_server.identity(PLUGIN, "system:masters")
    context = ssl.create_default_context(cafile=str(api_server.ca))
    context.load_cert_chain(cert, key)

    def call(method, path, body, content_type=MERGE):
        request = urllib.request.Request(
            api_server.url + path,
            method=method,
            data=json.dumps(body).encode(),
            headers={"Content-Type": content_type},
        )
        with urllib.request.urlopen(request, context=context, timeout=240) as answer:
            return json.loads(answer.read())

    return call


@pytest.fixture
def guarded(api_server, policy, tools, nodes):
    """A namespace in which the policies are in force; no webhook is asked there."""
    namespace = api_server.namespace({"hami.io/webhook": "ignore"})
    node = nodes({}, cards=1)

    probe = pod("probe", {}, notes("x", names.POD_ALLOCATED)["metadata"])
    node_probe = (f"/api/v1/nodes/{node}?dryRun=All", notes("x"), MERGE)
    pod_probe = (f"/api/v1/namespaces/{namespace}/pods?dryRun=All", probe)
    privileged = pod("probe", {GPU: "1"}, schedulerName=names.SCHEDULER_NAME, nodeName="n")
    share_probe = (pod_probe[0], privileged)

    def refused(method, arguments):
        try:
            api_server.request(method, *arguments)
        except tools.ApiStatus as error:
            return "ValidatingAdmissionPolicy" in error.body
        return False

    def in_force():
        return (
            refused("PATCH", node_probe)
            and refused("POST", pod_probe)
            and refused("POST", share_probe)
        )

    tools.wait_for(in_force, 120, "the policies are in force")
    yield namespace, node
    for found in api_server.pods(namespace):
        api_server.delete_pod(namespace, found["metadata"]["name"])


def notes(value, key=names.NODE_REGISTER, part="annotations"):
    return {"metadata": {part: {key: value}}}


@pytest.mark.parametrize("key", names.STACK_ANNOTATIONS)
@pytest.mark.parametrize("part", ["annotations", "labels"])
def test_policy_holds_without_the_webhook_for_pods(api_server, guarded, tools, key, part):
    namespace, node = guarded
    path = f"/api/v1/namespaces/{namespace}/pods"
    forged = notes("x", key, part)
    with pytest.raises(tools.ApiStatus, match=f"{key} is written by the stack alone"):
        api_server.request("POST", path, pod("forged", {GPU: "1"}, forged["metadata"]))
    api_server.request("POST", path, pod("plain", {GPU: "1"}))
    for below in ("", "/status"):
        with pytest.raises(tools.ApiStatus, match="stack alone"):
            api_server.request("PATCH", f"{path}/plain{below}", forged, MERGE)
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "plain", **forged["metadata"]},
        "target": {"kind": "Node", "name": node},
    }
    for where in (f"{path}/plain/binding", f"/api/v1/namespaces/{namespace}/bindings"):
        with pytest.raises(tools.ApiStatus, match="stack alone"):
            api_server.request("POST", where, binding)
    assert "annotations" not in api_server.pod(namespace, "plain")["metadata"]
    api_server.request("PATCH", f"{path}/plain", notes("1", "mine", part), MERGE)


def test_policy_lets_the_stack_write_and_nobody_take_away(api_server, guarded, tools, as_plugin):
    namespace, node = guarded
    path = f"/api/v1/namespaces/{namespace}/pods"
    api_server.request("POST", path, pod("held", {GPU: "1"}))
    as_plugin("PATCH", f"{path}/held", notes("success", names.POD_BIND_PHASE))
    as_plugin("PATCH", f"/api/v1/nodes/{node}", notes("[]"))
    for where, key in (
        (f"{path}/held", names.POD_BIND_PHASE),
        (f"/api/v1/nodes/{node}", names.NODE_REGISTER),
        (f"/api/v1/nodes/{node}/status", names.NODE_REGISTER),
    ):
        for value in ("", "x", None):
            with pytest.raises(tools.ApiStatus, match="stack alone"):
                api_server.request("PATCH", where, notes(value, key), MERGE)
    # Whatever else its owner writes beside it is his.
    found = api_server.request("PATCH", f"{path}/held", notes("1", "mine"), MERGE)
    assert found["metadata"]["annotations"] == {names.POD_BIND_PHASE: "success", "mine": "1"}
    api_server.request("PATCH", f"/api/v1/nodes/{node}", notes("GPU-a", names.DEVICE_CORDON), MERGE)


@pytest.mark.parametrize("key", names.STACK_NODE_ANNOTATIONS)
def test_policy_holds_without_the_webhook_for_nodes(api_server, guarded, tools, key):
    _, node = guarded
    with pytest.raises(tools.ApiStatus, match=f"{key} is written by the stack alone"):
        api_server.request("PATCH", f"/api/v1/nodes/{node}", notes("x", key), MERGE)
    with pytest.raises(tools.ApiStatus, match="stack alone"):
        api_server.request("POST", "/api/v1/nodes", {"metadata": {"name": "f", **notes(
            "x", key)["metadata"]}})  # fmt: skip


def test_policy_refuses_what_the_webhook_would(api_server, guarded, tools):
    """For pods that name our scheduler themselves: others get no card."""
    namespace, _ = guarded
    path = f"/api/v1/namespaces/{namespace}/pods?dryRun=All"

    def ask(scheduler=names.SCHEDULER_NAME, limits=None, more=None, **spec):
        body = pod("p", {GPU: "1"} if limits is None else limits, schedulerName=scheduler, **spec)
        body["spec"]["containers"][0].update(more or {})
        return api_server.request("POST", path, body)

    privileged = {"securityContext": {"privileged": True}}
    covering = {
        "volumeMounts": [{"name": "v", "mountPath": f"{names.CONTAINER_ROOT}/cards"}],
    }
    volume = {"volumes": [{"name": "v", "emptyDir": {}}]}
    side = {"initContainers": [{"name": "bad", "image": "i", **privileged}]}

    def env(name, value="1"):
        return {"env": [{"name": name, "value": value}]}

    unseen = {"envFrom": [{"configMapRef": {"name": "c"}}]}
    for words, arguments in (
        ("container main is privileged", {"more": privileged}),
        ("container bad is privileged", side),
        ("already assigned", {"nodeName": "n"}),
        ("would cover", {"more": covering, **volume}),
        ("sets a variable", {"more": env(names.ENV_DISABLE_CONTROL, "true")}),
        ("sets a variable", {"more": env(f"{names.ENV_MEMORY_LIMIT}_0")}),
        ("sets a variable", {"more": env(names.ENV_VISIBLE, "all")}),
        ("sets a variable", {"more": env(names.ENV_CORE_POLICY, "Disable")}),
        ("by envFrom", {"more": unseen}),
        ("by envFrom", {"more": {**unseen, **env(names.ENV_VISIBLE, "all")}}),
    ):
        with pytest.raises(tools.ApiStatus, match=words):
            ask(**arguments)
        # The control: the same without a card, or for another scheduler.
        ask(limits={}, **arguments)
        ask(scheduler="other", **arguments)
    ask(more=env(names.ENV_CORE_POLICY, "force"))
    ask(more=env("MINE"))
    ask(more={**unseen, **env(names.ENV_VISIBLE, "void")})  # as admission leaves it


# --- what the webhook is asked about ------------------------------------------------------


def test_dead_webhook_stops_only_what_asks_for_cards(api_server, webhook, create, programs, tools):
    """With ``Fail``, so that whoever depends on it shows."""
    programs.stop("webhook")
    assert create(pod("plain", {"cpu": "1"}))["spec"]["schedulerName"] == "default-scheduler"
    path = f"/api/v1/namespaces/{create.namespace}/pods/plain"
    api_server.request("PATCH", path, notes("1", "mine"), MERGE)
    with pytest.raises(tools.ApiStatus, match="failed calling webhook"):
        create(pod("asks", {GPU: "1"}))
    with pytest.raises(tools.ApiStatus, match="failed calling webhook"):
        api_server.request("PATCH", path, notes("x", names.POD_ALLOCATED), MERGE)


def test_webhook_refuses_later_forgeries(api_server, webhook, create, as_plugin, tools):
    create(pod("held", {GPU: "1"}))
    path = f"/api/v1/namespaces/{create.namespace}/pods/held"
    for below in ("", "/status"):
        with pytest.raises(tools.ApiStatus, match="written by the stack alone"):
            api_server.request("PATCH", path + below, notes("x", names.POD_ALLOCATED), MERGE)
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "held", **notes("x", names.POD_TO_ALLOCATE)["metadata"]},
        "target": {"kind": "Node", "name": "n"},
    }
    with pytest.raises(tools.ApiStatus, match="written by the stack alone"):
        api_server.request("POST", f"{path}/binding", binding)
    found = as_plugin("PATCH", path, notes("success", names.POD_BIND_PHASE))
    assert found["metadata"]["annotations"] == {names.POD_BIND_PHASE: "success"}


def test_forged_annotations_of_a_pod_without_cards_are_taken_off(create):
    made = create(pod("p", {}, notes("x", names.POD_ALLOCATED)["metadata"]))
    assert "annotations" not in made["metadata"]


def test_requests_alone_are_enough(create):
    body = pod("r", {})
    body["spec"]["containers"][0]["resources"] = {"requests": {GPU: "1", MEM: "3000"}}
    resources = create(body)["spec"]["containers"][0]["resources"]
    assert resources["limits"] == resources["requests"] == {GPU: "1", MEM: "3k"}


@pytest.mark.parametrize(
    ("typed", "stored"),
    [("16Ki", "16Ki"), ("3e3", "3e3"), ("3000000m", "3k"), ("2.5k", "2500"), ("3000.0", "3k")],
)
def test_quantities_as_kubernetes_means_them(create, typed, stored):
    made = create(pod("q", {MEM: typed}), "?dryRun=All")
    assert made["spec"]["containers"][0]["resources"]["limits"][MEM] == stored


@pytest.mark.parametrize("typed", ["16Gi", "1.5", "-1", "1500m", "4T", "1n"])
def test_quantity_that_cannot_be_meant_is_refused_with_its_field(create, tools, typed):
    with pytest.raises(tools.ApiStatus) as caught:
        create(pod("q", {GPU: "1", MEM: typed}))
    message = json.loads(caught.value.body)["message"]
    assert f"spec.containers[0].resources.limits[{MEM}]" in message and "write" in message


def test_variables_of_the_library_are_the_administrators(api_server, webhook, create, tools):
    env = [
        {"name": names.ENV_DISABLE_CONTROL, "value": "true"},
        {"name": names.ENV_VISIBLE, "value": "all"},
        {"name": "MINE", "value": "1"},
    ]
    body = pod("e", {GPU: "1"})
    body["spec"]["containers"][0]["env"] = env
    assert create(body, "?dryRun=All")["spec"]["containers"][0]["env"] == [env[2]]
    allowed = api_server.namespace(
        {"test": "webhook", names.OWN_ENVIRONMENT_LABEL: names.OWN_ENVIRONMENT_ALLOWED}
    )
    path = f"/api/v1/namespaces/{allowed}/pods?dryRun=All"
    made = api_server.request("POST", path, body)
    assert made["spec"]["schedulerName"] == names.SCHEDULER_NAME
    assert made["spec"]["containers"][0]["env"] == env


def test_configuration_is_followed(create, config, tools, webhook):
    changed = DeviceConfig(
        vendors=("nvidia", "hygon"), runtimeClassName="special", forceOverwriteScheduler=True
    )
    config.write_text(config_text(changed))
    body = pod("f", {GPU: "1", MEM: "5"}, schedulerName="other")
    with pytest.raises(tools.ApiStatus, match=r"RuntimeClass .*special.* not found"):
        create(body)


def test_admitted_twice_is_admitted_once(api_server, webhook, create):
    made = create(pod("twice", {MEM: "3000", names.RESOURCE_PRIORITY: "0"}))
    again = dict(made, metadata={"name": "again"})
    second = create(again, "?dryRun=All")
    assert second["spec"] == made["spec"]


# --- quota --------------------------------------------------------------------------------


def test_quota_is_told_early_and_by_use(api_server, webhook, create, as_plugin, tools):
    namespace = create.namespace
    hard = {"limits.nvidia.com/gpumem": "10k", "limits.nvidia.com/gpucores": "100"}
    api_server.request(
        "POST",
        f"/api/v1/namespaces/{namespace}/resourcequotas",
        {"metadata": {"name": "q"}, "spec": {"hard": hard}},
    )

    def refusal(limits):
        try:
            create(pod("probe", limits), "?dryRun=All")
        except tools.ApiStatus as error:
            return json.loads(error.body)["message"]
        return ""

    tools.wait_for(lambda: refusal({MEM: "10001"}), 120, "the webhook knows the quota")
    assert "10,001 MiB and the namespace has 10,000 MiB left" in refusal({MEM: "10001"})
    assert refusal({MEM: "10000"}) == ""
    assert "has 10,000 MiB left" in refusal({GPU: "2", MEM: "5001"})  # two cards count twice
    assert "needs 200 % of a card" in refusal({GPU: "2", MEM: "1", CORES: "100"})
    create(pod("held", {MEM: "4000", CORES: "30"}))
    assert refusal({MEM: "10000"}) == ""  # a pod that waits holds nothing
    as_plugin(
        "PATCH",
        f"/api/v1/namespaces/{namespace}/pods/held",
        notes("GPU-a,NVIDIA,4000,30:;", names.POD_ALLOCATED),
    )
    tools.wait_for(lambda: refusal({MEM: "6001"}), 120, "the pod's promise is counted")
    assert "has 6,000 MiB left" in refusal({MEM: "6001"})
    assert refusal({MEM: "6000"}) == ""
    assert "71 % of a card and the namespace has 70 %" in refusal({MEM: "1", CORES: "71"})


# --- certificates -------------------------------------------------------------------------


def test_certificates_rotate_while_requests_flow(
    api_server, webhook, create, programs, python, tools, config
):
    """A new authority, a new leaf, the old authority dropped: not one request is lost."""
    fresh = trustme.CA()
    old = api_server.authority
    failed, answered, stop = [], [], threading.Event()

    def flow():
        while not stop.is_set():
            try:
                made = create(pod("flow", {MEM: "5"}), "?dryRun=All")
                answered.append(made["spec"]["schedulerName"])
            except (tools.ApiStatus, OSError) as error:
                failed.append(str(error))
                return

    def progress(count):
        before = len(answered)
        tools.wait_for(lambda: failed or len(answered) >= before + count, 120, "requests flow")
        assert not failed

    def trust(*authorities):
        bundle = b"".join(one.cert_pem.bytes() for one in authorities)
        found = api_server.request("GET", f"{CONFIGURATIONS}/{REGISTRATION}")
        for hook in found["webhooks"]:
            hook["clientConfig"]["caBundle"] = base64.b64encode(bundle).decode()
        api_server.request("PUT", f"{CONFIGURATIONS}/{REGISTRATION}", found)

    flowing = threading.Thread(target=flow)
    flowing.start()
    try:
        progress(3)
        trust(fresh, old)
        progress(5)
        leaf = fresh.issue_cert("127.0.0.1", "localhost", common_name="webhook")
        # Certificate before key: in between the two do not belong together.
        leaf.cert_chain_pems[0].write_to_path(api_server.folder / "webhook-serving.crt")
        progress(3)
        leaf.private_key_pem.write_to_path(api_server.folder / "webhook-serving.key")
        tools.wait_for(
            lambda: (
                served_certificate(webhook).strip()
                == leaf.cert_chain_pems[0].bytes().decode().strip()
            ),
            120,
            "the new certificate is served",
        )
        progress(5)
        trust(fresh)
        progress(5)
    finally:
        stop.set()
        flowing.join(120)
    assert not failed and set(answered) == {names.SCHEDULER_NAME}
    # The control: a server of an authority that is not believed is not listened to.
    trust(trustme.CA())

    def refused():
        try:
            create(pod("flow", {MEM: "5"}), "?dryRun=All")
        except tools.ApiStatus as error:
            return "certificate" in error.body
        return False

    tools.wait_for(refused, 120, "another authority does not do")
