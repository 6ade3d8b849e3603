"""The admission decision on raw reviews, W1 to W10 and their kin."""

from __future__ import annotations

import base64
import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.errors import CodecError
from testbed.stack import names
from testbed.stack.config import DeviceConfig
from testbed.stack.devices.vendor import HYGON, vendors
from testbed.stack.placement.quota import UNBOUNDED, Amount
from testbed.stack.placement.request import pod_request
from testbed.stack.webhook.handler import Context, asking, review
from testbed.stack.webhook.jsonpatch import difference
from testbed.stack.webhook.server import answer_bytes, decoded
from testbed.units import quantity

CONFIG = DeviceConfig()
GPU, MEM = names.RESOURCE_COUNT, names.RESOURCE_MEMORY
PCT, CORES = names.RESOURCE_MEMORY_PERCENTAGE, names.RESOURCE_CORES


def container(name="main", /, limits=None, **more):
    found = {"name": name, "image": "i", **more}
    if limits is not None:
        found["resources"] = {"limits": limits}
    return found


def pod(*containers, init=(), metadata=None, **spec):
    found = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"} if metadata is None else metadata,
        "spec": {"containers": list(containers), **spec},
    }
    if init:
        found["spec"]["initContainers"] = list(init)
    return found


def envelope(found, **more):
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {"uid": "u-1", "operation": "CREATE", "object": found, **more},
    }


def apply_patch(document, patch):
    """Apply a JSON patch strictly: paths must exist as RFC 6902 demands."""
    document = copy.deepcopy(document)
    for operation in patch:
        *parents, last = [
            part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]
        ]
        where = document
        for part in parents:
            where = where[int(part)] if isinstance(where, list) else where[part]
        if isinstance(where, list):
            if operation["op"] == "add":
                where.insert(len(where) if last == "-" else int(last), operation["value"])
            elif operation["op"] == "remove":
                del where[int(last)]
            else:
                where[int(last)] = operation["value"]
        elif operation["op"] == "add":
            where[last] = operation["value"]
        elif operation["op"] == "remove":
            del where[last]
        else:
            assert last in where
            where[last] = operation["value"]
    return document


def admitted(found, config=CONFIG, context=None, **more):
    before = copy.deepcopy(found)
    answer = review(envelope(found, **more), context or Context(config=config))
    assert found == before, "the handler must not touch its input"
    assert answer["kind"] == "AdmissionReview"
    assert answer["apiVersion"] == "admission.k8s.io/v1"
    response = answer["response"]
    assert response["uid"] == "u-1"
    assert response["allowed"] is True, response
    if "patch" not in response:
        return found
    assert response["patchType"] == "JSONPatch"
    patch = json.loads(base64.b64decode(response["patch"]))
    assert patch, "an empty patch is no patch"
    return apply_patch(found, patch)


def refused(found, config=CONFIG, context=None, **more):
    answer = review(envelope(found, **more), context or Context(config=config))
    response = answer["response"]
    assert response["allowed"] is False
    assert "patch" not in response
    assert "\n" not in response["status"]["message"]
    return response["status"]["message"]


def limits_of(found, position=0):
    return found["spec"]["containers"][position]["resources"]["limits"]


# --- what becomes ours ------------------------------------------------------


@pytest.mark.parametrize("scheduler", [None, "", "default-scheduler", names.SCHEDULER_NAME])
def test_pod_that_asks_gets_our_scheduler(scheduler):
    found = pod(container(limits={GPU: "1", MEM: "3000"}))
    if scheduler is not None:
        found["spec"]["schedulerName"] = scheduler
    assert admitted(found)["spec"]["schedulerName"] == names.SCHEDULER_NAME


def test_init_container_alone_is_enough():
    found = pod(container(), init=[container("i", limits={GPU: "1", MEM: "5"})])
    assert admitted(found)["spec"]["schedulerName"] == names.SCHEDULER_NAME


@pytest.mark.parametrize(
    "limits", [None, {}, {"cpu": "1"}, {GPU: "0"}, {names.RESOURCE_PRIORITY: "1"}]
)
def test_pod_that_asks_nothing_is_left_alone(limits):
    found = pod(container(limits=limits))
    assert admitted(found) == found


@pytest.mark.parametrize("share", [{MEM: "3000"}, {PCT: "10"}, {CORES: "30", MEM: "1"}])
def test_count_defaults_to_one(share):
    assert limits_of(admitted(pod(container(limits=share))))[GPU] == "1"


def test_count_defaults_to_what_is_configured():
    found = pod(container(limits={MEM: "3000"}))
    assert limits_of(admitted(found, DeviceConfig(defaultGPUNum=2)))[GPU] == "2"
    assert "share of a card" in refused(found, DeviceConfig(defaultGPUNum=0))


def test_count_defaults_where_only_requests_are_given():
    found = pod({"name": "main", "resources": {"requests": {MEM: "3000"}}})
    # The API server takes no request of these without a limit.
    assert limits_of(admitted(found)) == {GPU: "1", MEM: "3000"}


@pytest.mark.parametrize(
    ("limits", "cores"),
    [
        ({GPU: "1"}, "100"),  # the whole card
        ({GPU: "1", PCT: "100"}, "100"),
        ({GPU: "1", PCT: "0"}, "100"),  # W7: 0 is unset
        ({PCT: "100"}, "100"),
        ({GPU: "1", MEM: "3000"}, None),
        ({GPU: "1", MEM: "3000", PCT: "100"}, None),  # gpumem wins
        ({GPU: "1", PCT: "99"}, None),
        ({GPU: "1", CORES: "0"}, "0"),  # said so
        ({GPU: "1", CORES: "30"}, "30"),
    ],
)
def test_w7_exclusive_rules(limits, cores):
    assert limits_of(admitted(pod(container(limits=limits)))).get(CORES) == cores


def test_default_memory_makes_nobody_exclusive():
    found = pod(container(limits={GPU: "1"}))
    assert CORES not in limits_of(admitted(found, DeviceConfig(defaultMemory=1000)))


@pytest.mark.parametrize("value", ["101", "-1", "1000", "1.5"])
@pytest.mark.parametrize("key", [PCT, CORES])
def test_w7_percentage_out_of_range_is_refused(key, value):
    message = refused(pod(container("trainer", limits={GPU: "1", key: value})))
    assert "trainer" in message
    assert key in message


@pytest.mark.parametrize("value", ["16Gi", "1.5", "-1", "2147483648", "nonsense", "1u"])
@pytest.mark.parametrize("key", [GPU, MEM])
def test_r4_quantity_that_cannot_be_meant_is_refused(key, value):
    message = refused(pod(container("trainer", limits={GPU: "1", MEM: "1", key: value})))
    assert "trainer" in message
    assert value in message


def test_limits_and_requests_that_differ_are_refused():
    found = pod(
        {"name": "a", "resources": {"limits": {GPU: "1", MEM: "5"}, "requests": {MEM: "4"}}}
    )
    assert "limit 5 and request 4" in refused(found)


def test_priority_becomes_environment():
    found = pod(
        container(
            limits={GPU: "1", MEM: "5", names.RESOURCE_PRIORITY: "1"},
            env=[{"name": names.ENV_PRIORITY, "value": "0"}, {"name": "A", "value": "b"}],
        )
    )
    env = admitted(found)["spec"]["containers"][0]["env"]
    assert env == [{"name": "A", "value": "b"}, {"name": names.ENV_PRIORITY, "value": "1"}]


# --- what is refused --------------------------------------------------------

PRIVILEGED = {"securityContext": {"privileged": True}}


@pytest.mark.parametrize(
    "found",
    [
        pod(container("bad", **PRIVILEGED), container("b", limits={GPU: "1"})),
        pod(container("bad", limits={GPU: "1"}, **PRIVILEGED)),
        pod(container("b", limits={GPU: "1"}), init=[container("bad", **PRIVILEGED)]),
        pod(
            container("b", limits={MEM: "1"}),
            init=[container("bad", restartPolicy="Always", **PRIVILEGED)],
        ),
        pod(container("b"), init=[container("bad", limits={GPU: "1"}, **PRIVILEGED)]),
        pod(
            container("b", limits={GPU: "1"}),
            ephemeralContainers=[container("bad", **PRIVILEGED)],
        ),
    ],
)
def test_w1_privileged_beside_a_share_is_refused_by_name(found):
    assert "'bad' is privileged" in refused(found)


def test_privileged_without_a_share_is_left_alone():
    found = pod(container(**PRIVILEGED))
    assert admitted(found) == found


@pytest.mark.parametrize("value", [False, None])
def test_not_privileged_is_not_refused(value):
    admitted(pod(container(limits={GPU: "1"}, securityContext={"privileged": value})))


@pytest.mark.parametrize(
    "path",
    [
        *("/etc/ld.so.preload", "/usr/local/vgpu", "/usr/local/vgpu/", "/usr/local/vgpu/cards"),
        *("usr/local/vgpu", "//usr/local//vgpu", "/usr/local/bin/../vgpu/region"),
    ],
)
@pytest.mark.parametrize(
    ("key", "field"), [("volumeMounts", "mountPath"), ("volumeDevices", "devicePath")]
)
def test_a_volume_over_the_library_is_refused_by_name(path, key, field):
    covering = {key: [{"name": "v", field: path}]}
    for found in (
        pod(container("bad", limits={GPU: "1"}, **covering)),
        pod(container("bad", limits={MEM: "5"}, **covering)),
        pod(container("b"), init=[container("bad", limits={GPU: "1"}, **covering)]),
    ):
        text = refused(found)
        assert "'bad' mounts a volume at /" in text and "LD_PRELOAD" in text


@pytest.mark.parametrize("path", ["/etc", "/usr/local", "/usr/local/vgpu2", "/vgpu", "", None, 3])
def test_volumes_elsewhere_are_left_alone(path):
    admitted(pod(container(limits={GPU: "1"}, volumeMounts=[{"name": "v", "mountPath": path}])))
    covering = [{"name": "v", "mountPath": names.CONTAINER_PRELOAD}]
    admitted(pod(container(volumeMounts=covering), container("b", limits={GPU: "1"})))


def test_w6_preset_node_is_refused():
    assert "node 'n1'" in refused(pod(container(limits={GPU: "1"}), nodeName="n1"))
    found = pod(container(), nodeName="n1")
    assert admitted(found) == found


def test_w10_host_pid_is_admitted():
    found = pod(container(limits={GPU: "1"}), hostPID=True)
    assert admitted(found)["spec"]["hostPID"] is True


def test_pod_without_containers_is_refused():
    assert "no containers" in refused(pod())
    assert "no containers" in refused(pod(init=[container(limits={GPU: "1"})]))


# --- what is not ours -------------------------------------------------------


def test_w2_other_schedulers_pod_is_untouched():
    found = pod(container(limits={GPU: "1", MEM: "16Gi"}), schedulerName="other")
    assert admitted(found) == found
    privileged = pod(container(limits={GPU: "1"}, **PRIVILEGED), schedulerName="other")
    assert admitted(privileged) == privileged


def test_label_ignore_leaves_a_pod_alone():
    found = pod(
        container(limits={GPU: "1"}),
        metadata={"name": "p", "labels": {names.WEBHOOK_LABEL: names.WEBHOOK_IGNORE}},
    )
    assert admitted(found) == found


@pytest.mark.parametrize("scheduler", [names.SCHEDULER_NAME, "other", None])
@pytest.mark.parametrize("limits", [{GPU: "1", MEM: "5"}, {}])
@pytest.mark.parametrize("part", ["annotations", "labels"])
@pytest.mark.parametrize("ignore", [True, False])
def test_forged_promises_are_removed_from_every_pod(scheduler, limits, part, ignore):
    metadata = {"name": "p", part: dict.fromkeys(names.STACK_ANNOTATIONS, "x") | {"mine": "1"}}
    if ignore:
        metadata.setdefault("labels", {})[names.WEBHOOK_LABEL] = names.WEBHOOK_IGNORE
    found = pod(container(limits=limits), metadata=metadata)
    if scheduler:
        found["spec"]["schedulerName"] = scheduler
    after = admitted(found)["metadata"][part]
    assert not set(after) & set(names.STACK_ANNOTATIONS)
    assert after["mine"] == "1"


def test_constraints_of_the_user_stay():
    annotations = {names.USE_UUID: "GPU-a"}
    found = pod(container(limits={GPU: "1"}), metadata={"name": "p", "annotations": annotations})
    assert admitted(found)["metadata"]["annotations"] == annotations


def test_unknown_fields_survive():
    found = pod(container(limits={GPU: "1"}, future={"a": [1]}), brandNew={"x": None})
    after = admitted(found)
    assert after["spec"]["brandNew"] == {"x": None}
    assert after["spec"]["containers"][0]["future"] == {"a": [1]}


# --- environment (W5) -------------------------------------------------------


@pytest.mark.parametrize(
    "env",
    [
        None,
        [{"name": names.ENV_VISIBLE, "value": "all"}],
        [{"name": names.ENV_VISIBLE, "valueFrom": {"fieldRef": {"fieldPath": "x"}}}],
        [{"name": names.ENV_VISIBLE, "value": "all"}, {"name": names.ENV_VISIBLE, "value": "0"}],
    ],
)
def test_w5_containers_without_a_share_see_no_card(env):
    plain = container("plain") if env is None else container("plain", env=env)
    found = pod(plain, container("gpu", limits={GPU: "1", MEM: "1"}))
    on = DeviceConfig(overwriteEnv=True)
    after = admitted(found, on)["spec"]["containers"]
    assert after[0]["env"] == [{"name": names.ENV_VISIBLE, "value": "none"}]
    assert "env" not in after[1]
    alone = admitted(pod(plain), on)
    assert alone["spec"]["containers"][0]["env"] == after[0]["env"]
    assert "schedulerName" not in alone["spec"]
    assert admitted(pod(plain)) == pod(plain)  # off by default


# --- other requests ---------------------------------------------------------


def test_w9_privileged_debug_container_of_a_gpu_pod_is_refused():
    found = pod(
        container(limits={GPU: "1"}),
        schedulerName=names.SCHEDULER_NAME,
        nodeName="n1",
        ephemeralContainers=[container("debugger", **copy.deepcopy(PRIVILEGED))],
    )
    more = {"operation": "UPDATE", "subResource": "ephemeralcontainers"}
    assert "'debugger' is privileged" in refused(found, **more)
    found["spec"]["ephemeralContainers"][0]["securityContext"]["privileged"] = False
    assert admitted(found, **more) == found


def test_w9_debug_container_of_other_pods_is_left_alone():
    more = {"operation": "UPDATE", "subResource": "ephemeralcontainers"}
    debugger = [container("debugger", **PRIVILEGED)]
    for found in (
        pod(container(), ephemeralContainers=debugger),
        pod(container(), schedulerName=names.SCHEDULER_NAME, ephemeralContainers=debugger),
    ):
        assert admitted(found, **more) == found


@pytest.mark.parametrize(
    "more",
    [
        {"operation": "UPDATE"},
        {"operation": "DELETE", "object": None},
        {"resource": {"resource": "services"}},
        {"subResource": "binding"},
    ],
)
def test_other_requests_are_allowed_unchanged(more):
    found = pod(container(limits={GPU: "1"}))
    answer = review(envelope(found) | {"request": envelope(found)["request"] | more}, Context())
    assert answer["response"] == {"uid": "u-1", "allowed": True}


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"null", b"3", b'"x"', b"\xff\xfe", b"{}", b'{"kind":"AdmissionReview"}',
        b'{"kind":"AdmissionReview","request":{}}', b'{"kind":"Pod","request":{"uid":"1"}}',
        b'{"kind":"AdmissionReview","request":{"uid":5}}', b"[" * 100_000,
        b'{"kind":"AdmissionReview","request":{"uid":"1","object":{"spec":{"containers":[{"x":'
        + b"[" * 900 + b"]" * 900 + b"}]}}}}",
    ],
    ids=range(14),
)  # fmt: skip
def test_malformed_bodies_are_refused_as_such(body):
    with pytest.raises(CodecError):
        answer_bytes(decoded(body), Context())


@pytest.mark.parametrize(
    "found",
    [
        None, [], "pod", {}, {"spec": None}, {"spec": []}, {"spec": {"containers": {}}},
        {"spec": {"containers": [None]}}, {"spec": {"containers": ["x"]}},
        {"spec": {"containers": [{"resources": [1]}]}},
        {"spec": {"containers": [{"resources": {"limits": [1]}}]}},
        {"spec": {"containers": [{"resources": {"limits": {GPU: {"a": 1}}}}]}},
        {"spec": {"containers": [{"env": {"a": 1}, "resources": {"limits": {
            GPU: "1", names.RESOURCE_PRIORITY: "1"}}}]}},
    ],
)  # fmt: skip
def test_misshapen_pods_are_refused_with_a_reason(found):
    assert refused(found)


@pytest.mark.parametrize("user", [None, [], {}, "x", {"username": []}, {"username": {"a": 1}}, 5])
@pytest.mark.parametrize("key", ["userInfo", "username"])
def test_who_cannot_be_read_is_not_trusted(user, key):
    found = pod(container(limits={GPU: "1"}))
    forged = pod(container(limits={GPU: "1"}), metadata={"annotations": {names.POD_NODE: "n"}})
    document = envelope(forged)
    more = {"operation": "UPDATE", "oldObject": found}
    more["userInfo"] = user if key == "userInfo" else {"username": user}
    answer = review(document | {"request": document["request"] | more}, Context())
    assert not answer["response"]["allowed"]


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.floats(allow_nan=False)
    | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)
shapes = st.fixed_dictionaries(
    {},
    optional={
        "metadata": json_values
        | st.fixed_dictionaries({}, optional={"labels": json_values, "annotations": json_values}),
        "spec": json_values
        | st.fixed_dictionaries(
            {"containers": st.lists(st.fixed_dictionaries({}, optional={
                "name": json_values, "env": json_values, "securityContext": json_values,
                "resources": json_values | st.fixed_dictionaries(
                    {"limits": st.dictionaries(
                        st.sampled_from([GPU, MEM, PCT, CORES]), json_values)}
                ),
            }), max_size=2)},
            optional={"initContainers": json_values, "schedulerName": json_values,
                      "nodeName": json_values, "ephemeralContainers": json_values},
        ),
    },
)  # fmt: skip


@given(shapes, st.booleans(), st.sampled_from(["CREATE", "UPDATE"]))
def test_every_pod_is_answered_and_every_patch_applies(found, overwrite, operation):
    config = DeviceConfig(overwriteEnv=overwrite)
    more = {"operation": operation}
    if operation == "UPDATE":
        more["subResource"] = "ephemeralcontainers"
    document = decoded(json.dumps(envelope(found, **more)).encode())
    answer = json.loads(answer_bytes(document, Context(config=config)))
    if answer["response"]["allowed"] and "patch" in answer["response"]:
        apply_patch(found, json.loads(base64.b64decode(answer["response"]["patch"])))
    elif not answer["response"]["allowed"]:
        assert answer["response"]["status"]["message"]


@given(json_values, json_values)
def test_difference_applied_gives_the_new_document(old, new):
    patch = difference({"x": old}, {"x": new})
    after = apply_patch({"x": old}, patch)
    assert json.dumps(after, sort_keys=True) == json.dumps({"x": new}, sort_keys=True)


# --- what follows from the configuration ----------------------------------------------------


@pytest.mark.parametrize(
    ("scheduler", "fields", "ours"),
    [
        ("default-scheduler", {}, True),
        ("default-scheduler", {"forceOverwriteDefaultScheduler": False}, False),
        (names.SCHEDULER_NAME, {"forceOverwriteDefaultScheduler": False}, True),
        ("other", {}, False),
        ("other", {"forceOverwriteScheduler": True}, True),
    ],
)
def test_whose_pods_are_taken(scheduler, fields, ours):
    found = pod(container(limits={MEM: "5"}), schedulerName=scheduler)
    after = admitted(found, DeviceConfig(**fields))
    assert (after["spec"]["schedulerName"] == names.SCHEDULER_NAME) is ours
    assert (after != found) is ours


def test_runtime_class_is_set_where_there_is_none():
    config = DeviceConfig(runtimeClassName="nvidia")
    found = pod(container(limits={GPU: "1"}))
    assert admitted(found, config)["spec"]["runtimeClassName"] == "nvidia"
    found["spec"]["runtimeClassName"] = "own"
    assert admitted(found, config)["spec"]["runtimeClassName"] == "own"
    assert admitted(pod(container()), config) == pod(container())
    assert "runtimeClassName" not in admitted(pod(container(limits={GPU: "1"})))["spec"]


@pytest.mark.parametrize("policy", ["force", "disable"])
def test_administrators_core_policy_becomes_environment(policy):
    own = [{"name": names.ENV_CORE_POLICY, "value": "default"}]
    found = pod(container(limits={GPU: "1"}, env=own), container("plain"))
    after = admitted(found, DeviceConfig(gpuCorePolicy=policy))["spec"]["containers"]
    assert after[0]["env"] == [{"name": names.ENV_CORE_POLICY, "value": policy}]
    assert "env" not in after[1]


def test_ignored_pod_that_names_our_scheduler_is_not_ignored():
    """It would get a card: what no pod with a card may be holds for it as well."""
    labels = {"name": "p", "labels": {names.WEBHOOK_LABEL: names.WEBHOOK_IGNORE}}
    found = pod(
        container(limits={GPU: "1"}, **PRIVILEGED),
        metadata=labels,
        schedulerName=names.SCHEDULER_NAME,
    )
    assert "is privileged" in refused(found)
    found["spec"]["schedulerName"] = "default-scheduler"
    assert admitted(found) == found


# --- the library's variables ----------------------------------------------------------------

LIBRARY = [
    *names.ENV_LIBRARY,
    names.ENV_VISIBLE,
    *(f"{name}_{i}" for name in names.ENV_LIMITS for i in (0, 15)),
]


@pytest.mark.parametrize("name", LIBRARY)
@pytest.mark.parametrize("form", [{"value": "1"}, {"valueFrom": {"fieldRef": {}}}, {}])
def test_the_librarys_variables_are_taken_away(name, form):
    mine = {"name": "MINE", "value": "1"}
    found = pod(
        container("gpu", limits={GPU: "1"}, env=[{"name": name, **form}, mine]),
        container("plain", env=[{"name": name, **form}]),
        init=[container("init", limits={GPU: "1"}, env=[{"name": name, **form}])],
    )
    after = admitted(found)["spec"]
    assert after["containers"][0]["env"] == [mine]
    assert after["initContainers"][0]["env"] == []
    assert after["containers"][1] == found["spec"]["containers"][1]  # no library runs there
    warnings = review(envelope(found), Context())["response"]["warnings"]
    assert any(name in text and names.OWN_ENVIRONMENT_LABEL in text for text in warnings)
    own = admitted(found, context=Context(own_environment=True))["spec"]
    assert own["containers"][0]["env"] == found["spec"]["containers"][0]["env"]


@pytest.mark.parametrize("source", ["configMapRef", "secretRef"])
@pytest.mark.parametrize("own", [[], [{"name": names.ENV_VISIBLE, "value": "all"}]])
def test_cards_are_hidden_from_what_nobody_sees_here(source, own):
    """A container's own variable goes before what envFrom brings."""
    many = {"envFrom": [{source: {"name": "c"}}], "env": [*own, {"name": "MINE", "value": "1"}]}
    found = pod(
        container("gpu", limits={GPU: "1"}, **copy.deepcopy(many)),
        container("plain", **copy.deepcopy(many)),
    )
    after = admitted(found)["spec"]["containers"]
    hidden = {"name": names.ENV_VISIBLE, "value": "void"}
    assert after[0]["env"] == [{"name": "MINE", "value": "1"}, hidden]
    assert after[0]["envFrom"] == many["envFrom"]
    assert after[1] == found["spec"]["containers"][1]
    allowed = admitted(found, context=Context(own_environment=True))["spec"]["containers"]
    assert allowed[0]["env"] == many["env"]


@pytest.mark.parametrize("value", ["force", "default", "FORCE"])
def test_a_policy_that_lifts_no_limit_is_the_pods_own(value):
    env = [{"name": names.ENV_CORE_POLICY, "value": value}]
    after = admitted(pod(container(limits={GPU: "1"}, env=env)))["spec"]["containers"][0]
    assert after["env"] == env


@pytest.mark.parametrize("name", ["CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_MEMORY_LIMITS", "LD_PRELOAD",
                                  "CUDA_DEVICE_SM_LIMIT_X", "cuda_disable_control"])  # fmt: skip
def test_other_variables_stay(name):
    env = [{"name": name, "value": "1"}]
    after = admitted(pod(container(limits={GPU: "1"}, env=env)))["spec"]["containers"][0]
    assert after["env"] == env


# --- memory that no card has, quota ---------------------------------------------------------


def test_bytes_that_are_meant_as_mib_are_warned_of():
    found = pod(container(limits={GPU: "1", MEM: "512Mi"}))
    (text,) = review(envelope(found), Context())["response"]["warnings"]
    assert f"spec.containers[0].resources.limits[{MEM}]" in text and "write 512" in text
    for usual in ("81920", "3k", "16Ki"):
        answer = review(envelope(pod(container(limits={GPU: "1", MEM: usual}))), Context())
        assert "warnings" not in answer["response"]


@pytest.mark.parametrize(
    ("apps", "inits", "sidecars", "mem", "cores"),
    [
        ([(1, 3000, 30)], [], [], 3000, 30),
        ([(2, 3000, 30)], [], [], 6000, 60),
        ([(1, 3000, 30), (1, 1000, 20)], [], [], 4000, 50),
        ([(1, 1000, 10)], [(1, 9000, 5)], [], 9000, 10),
        ([(1, 1000, 10)], [(1, 9000, 5), (1, 100, 90)], [], 9000, 90),
        ([(1, 1000, 10)], [(1, 9000, 5)], [(1, 500, 10)], 9500, 20),
    ],
)
def test_quota_counts_as_the_scheduler_does(apps, inits, sidecars, mem, cores):
    def asking(name, triple, **more):
        count, mib, pct = triple
        return container(name, limits={GPU: str(count), MEM: str(mib), CORES: str(pct)}, **more)

    found = pod(
        *(asking(f"a{i}", triple) for i, triple in enumerate(apps)),
        init=[
            *(asking(f"s{i}", t, restartPolicy="Always") for i, t in enumerate(sidecars)),
            *(asking(f"i{i}", t) for i, t in enumerate(inits)),
        ],
    )
    admitted(found, context=Context(room=Amount(mem_mib=mem, core_pct=cores)))
    admitted(found, context=Context(room=UNBOUNDED))
    text = refused(found, context=Context(room=Amount(mem_mib=mem - 1)))
    assert "exceeding resource quota of gpumem" in text and f"{mem:,} MiB" in text
    text = refused(found, context=Context(room=Amount(core_pct=cores - 1)))
    assert "exceeding resource quota of gpucores" in text


def test_a_quota_of_nothing_forbids_and_a_share_of_a_card_is_left_to_the_scheduler():
    none = Context(room=Amount(mem_mib=0))
    assert "0 MiB left" in refused(pod(container(limits={MEM: "1"})), context=none)
    admitted(pod(container(limits={PCT: "50"})), context=none)
    admitted(pod(container()), context=none)
    over = Context(room=Amount(mem_mib=-5))
    assert "has 0 MiB left" in refused(pod(container(limits={MEM: "1"})), context=over)


def test_quota_is_asked_for_only_where_it_matters():
    asks, plain = pod(container(limits={MEM: "1"})), pod(container())
    nvidia = vendors(CONFIG)[0]
    for found, more, answer in (
        (asks, {}, ("ns", nvidia)),
        (asks, {"operation": "UPDATE"}, None),
        (asks, {"subResource": "binding"}, None),
        (plain, {}, None),
        ({}, {}, None),
        (None, {}, None),
    ):
        assert asking(envelope(found, namespace="ns", **more), CONFIG) == answer


def test_the_quota_of_a_second_vendors_cards_is_its_own():
    config = DeviceConfig(vendors=("nvidia", "hygon"))
    found = pod(container(limits={HYGON.memory: "1", HYGON.count: "1"}))
    assert asking(envelope(found, namespace="ns"), config) == ("ns", HYGON)


# --- what only the stack may write ----------------------------------------------------------

WRITER = "system:serviceaccount:x:plugin"


@pytest.mark.parametrize("part", ["annotations", "labels"])
@pytest.mark.parametrize(
    ("resource", "keys"),
    [("pods", names.STACK_ANNOTATIONS), ("nodes", names.STACK_NODE_ANNOTATIONS)],
)
@pytest.mark.parametrize(("before", "after"), [(None, "x"), ("x", "y"), ("x", None), ("x", "")])
def test_later_changes_are_the_stacks_alone(part, resource, keys, before, after):
    def written(value, **more):
        values = {"mine": "1", **more} | ({} if value is None else {key: value})
        return {"metadata": {"name": "o", part: values}, "spec": {}}

    for key in keys:
        change = {
            "operation": "UPDATE",
            "resource": {"resource": resource},
            "oldObject": written(before),
        }
        assert key in refused(written(after), **change)
        admitted(written(before, theirs="2"), **change)
        context = Context(writers=frozenset({WRITER}))
        admitted(written(after), context=context, userInfo={"username": WRITER}, **change)
        assert key in refused(
            written(after), context=context, userInfo={"username": "kubernetes-admin"}, **change
        )


@pytest.mark.parametrize("resource", [{"resource": "pods"}, {"resource": "bindings"}])
def test_binding_carries_no_forgery(resource):
    binding = {"kind": "Binding", "metadata": {"name": "p"}, "target": {"name": "n"}}
    more = {"resource": resource, "subResource": "binding"}
    admitted(binding, **more)
    binding["metadata"]["annotations"] = {names.POD_TO_ALLOCATE: "GPU-a,NVIDIA,1,1:;"}
    assert names.POD_TO_ALLOCATE in refused(binding, **more)


def test_new_node_loses_forged_cards():
    node = {"metadata": {"name": "n", "annotations": {names.NODE_REGISTER: "[]", "mine": "1"}}}
    after = admitted(node, resource={"resource": "nodes"})
    assert after["metadata"]["annotations"] == {"mine": "1"}


def test_another_vendors_promises_are_guarded_as_well():
    config = DeviceConfig(vendors=("nvidia", "hygon"))
    key = "hami.io/dcu-devices-to-allocate"
    found = pod(container(), metadata={"name": "p", "annotations": {key: "x", "mine": "1"}})
    assert admitted(found, config)["metadata"]["annotations"] == {"mine": "1"}
    dcu = pod(container(limits={"hygon.com/dcumem": "4000"}))
    after = admitted(dcu, config)
    assert limits_of(after) == {"hygon.com/dcunum": "1", "hygon.com/dcumem": "4000"}
    assert after["spec"]["schedulerName"] == names.SCHEDULER_NAME
    whole = pod(container(limits={"hygon.com/dcunum": "1"}))
    assert limits_of(admitted(whole, config))["hygon.com/dcucores"] == "100"


# --- whatever a pod looks like ----------------------------------------------------------------

quantities = (
    st.sampled_from(["0", "1", "2", "3k", "16Ki", "16Gi", "100", "101", "-1", "1500m", "x", ""])
    | st.integers(-2, 200)
    | st.text(max_size=3)
)
amounts = st.dictionaries(
    st.sampled_from([GPU, MEM, PCT, CORES, names.RESOURCE_PRIORITY, "cpu"]), quantities, max_size=4
)
members = st.fixed_dictionaries(
    {"name": st.sampled_from(["a", "b"])},
    optional={
        "resources": st.fixed_dictionaries({}, optional={"limits": amounts, "requests": amounts}),
        "restartPolicy": st.sampled_from(["Always", "Never"]),
        "securityContext": st.fixed_dictionaries({"privileged": st.booleans() | st.none()}),
        "env": st.lists(
            st.fixed_dictionaries(
                {"name": st.sampled_from([*LIBRARY, "MINE"])},
                optional={"value": st.sampled_from(["0", "1", "disable", "force"])},
            ),
            max_size=3,
        ),
        "unknown": json_values,
    },
)
pods = st.fixed_dictionaries(
    {"metadata": st.fixed_dictionaries({"name": st.just("p")}, optional={
        "annotations": st.dictionaries(
            st.sampled_from([*names.STACK_ANNOTATIONS, "mine"]), st.just("x"), max_size=3),
        "labels": st.dictionaries(
            st.sampled_from([names.WEBHOOK_LABEL, names.POD_NODE]), st.just("ignore"), max_size=2),
    }),
     "spec": st.fixed_dictionaries(
        {"containers": st.lists(members, min_size=1, max_size=2)},
        optional={"initContainers": st.lists(members, max_size=2), "unknown": json_values,
                  "schedulerName": st.sampled_from(
                      ["other", "default-scheduler", names.SCHEDULER_NAME])})},
)  # fmt: skip
configs = st.builds(
    DeviceConfig,
    overwriteEnv=st.booleans(),
    defaultGPUNum=st.integers(0, 2),
    defaultMemory=st.sampled_from([0, 1000]),
    defaultCores=st.sampled_from([0, 20]),
    gpuCorePolicy=st.sampled_from(["default", "force", "disable"]),
    runtimeClassName=st.sampled_from(["", "nvidia"]),
    forceOverwriteDefaultScheduler=st.booleans(),
    vendors=st.sampled_from([("nvidia",), ("nvidia", "hygon")]),
)


@given(pods, configs, st.booleans())
def test_an_admitted_pod_is_accounted_and_admitted_again_as_it_is(found, config, own):
    context = Context(config=config, own_environment=own)
    response = review(envelope(found), context)["response"]
    if not response["allowed"]:
        assert response["status"]["message"]
        return
    patch = json.loads(base64.b64decode(response.get("patch", base64.b64encode(b"[]"))))
    once = apply_patch(found, patch)
    again = review(envelope(once), context)["response"]
    assert again["allowed"] and "patch" not in again
    for part in ("annotations", "labels"):
        assert not set(once["metadata"].get(part, {})) & set(names.STACK_ANNOTATIONS)
    assert once["spec"].get("unknown") == found["spec"].get("unknown")
    if once["spec"].get("schedulerName") != names.SCHEDULER_NAME:
        return
    # Whoever is scheduled by us can be read, and what he typed is what he gets.
    asked = pod_request(once, config)
    members = [*once["spec"].get("initContainers", []), *once["spec"]["containers"]]
    for member, request in zip(members, asked.containers, strict=True):
        limits = member.get("resources", {}).get("limits", {})
        counted = quantity(limits[GPU]) if GPU in limits else 0
        assert request.count == counted
        if request.count:
            assert request.mem_mib or request.mem_pct
            assert not any(c.get("securityContext", {}).get("privileged") is True for c in members)
            if not own:
                env = [item["name"] for item in member.get("env", [])]
                assert names.ENV_DISABLE_CONTROL not in env and names.ENV_VISIBLE not in env
        elif limits.get(MEM) is not None:
            assert not quantity(limits[MEM])
