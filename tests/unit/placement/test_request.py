"""What pods ask for, and what is refused: rule by rule, many inputs of each kind."""

from __future__ import annotations

import contextlib
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.errors import InputError
from testbed.stack import names
from testbed.stack.config import DeviceConfig
from testbed.stack.model import NO_REQUEST, Request
from testbed.stack.placement import Kind, container_kinds, pod_request
from testbed.stack.placement.request import container_request

CONFIG = DeviceConfig()


def container(requests=None, /, **limits):
    keys = {
        "gpu": names.RESOURCE_COUNT,
        "mem": names.RESOURCE_MEMORY,
        "pct": names.RESOURCE_MEMORY_PERCENTAGE,
        "cores": names.RESOURCE_CORES,
        "priority": names.RESOURCE_PRIORITY,
    }
    resources = {"limits": {keys[k]: v for k, v in limits.items()}}
    if requests is not None:
        resources["requests"] = {keys[k]: v for k, v in requests.items()}
    return {"name": "main", "resources": resources}


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        (container(), NO_REQUEST),
        (container(gpu="0"), NO_REQUEST),
        (container(gpu="0", mem="0"), NO_REQUEST),
        (container(gpu="1"), Request(count=1, mem_pct=100)),
        (
            container(gpu=1, mem=3000, cores=30),
            Request(count=1, mem_mib=3000, core_pct=30),
        ),
        (container(gpu="2", mem="3k"), Request(count=2, mem_mib=3000)),
        (container(gpu="1", mem="1e3"), Request(count=1, mem_mib=1000)),
        (container(gpu="1", mem="3000.0"), Request(count=1, mem_mib=3000)),
        (container(gpu="1", mem="3000000m"), Request(count=1, mem_mib=3000)),
        (container(gpu="1", mem="16Ki"), Request(count=1, mem_mib=16384)),
        (container(gpu="1", mem="2Mi"), Request(count=1, mem_mib=2 << 20)),
        (container(gpu="1", mem="0Gi"), Request(count=1, mem_pct=100)),
        (container(gpu="1", mem="2147483647"), Request(count=1, mem_mib=2**31 - 1)),
        (container(gpu="1", mem="3e3"), Request(count=1, mem_mib=3000)),
        (container(gpu="1", mem="0003000"), Request(count=1, mem_mib=3000)),
        (container(gpu="1", mem="+5"), Request(count=1, mem_mib=5)),
        (container(gpu="1", mem="2.5k"), Request(count=1, mem_mib=2500)),
        (container({"mem": "3k"}, gpu="1", mem="3000"), Request(count=1, mem_mib=3000)),
        (container(gpu="1", cores="0.03k", mem="1"), Request(count=1, mem_mib=1, core_pct=30)),
        (container(gpu="1", pct="50"), Request(count=1, mem_pct=50)),
        (container(gpu="1", pct="0"), Request(count=1, mem_pct=100)),  # W7: 0 is unset
        (container(gpu="1", mem="0"), Request(count=1, mem_pct=100)),
        (container(gpu="1", mem="10", pct="50"), Request(count=1, mem_mib=10)),  # gpumem wins
        (container({"gpu": "1", "mem": "7"}), Request(count=1, mem_mib=7)),  # requests alone
        (container({"gpu": "1"}, gpu="1"), Request(count=1, mem_pct=100)),
        ({"name": "bare"}, NO_REQUEST),
        ({"name": "null", "resources": None}, NO_REQUEST),
        ({"name": "nulls", "resources": {"limits": None, "requests": None}}, NO_REQUEST),
    ],
)
def test_request(given_, expected):
    assert container_request(given_, CONFIG) == expected


BAD_QUANTITIES = [
    "16Gi", "2Gi", "30720Mi", "16G", "1Ti", "-1Ki",  # R4: bytes where MiB are meant
    "1.5", "0.1", "500m", "1n", 1.5,  # no whole number
    "-1", "-16", -1, "-1e3",  # negative
    "2147483648", "3G", "1e10", "9" * 40, 2**31, "1e999",  # over int32
    "", "abc", "1 000", "0x10", "1,000", "50%", "NaN", "inf", "1e", "e3", "--1", "१२",
    "1e99999999999", "9" * 10_000, True, False, [], ["1"], {}, {"value": 1},
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD_QUANTITIES, ids=lambda bad: repr(bad)[:20])
@pytest.mark.parametrize("key", ["gpu", "mem", "pct", "cores", "priority"])
def test_quantity_that_cannot_be_meant_is_refused(key, bad):
    values = {"gpu": "1", key: bad}
    with pytest.raises(InputError) as caught:
        container_request(container(**values), CONFIG)
    text = caught.value.text()
    assert "'main'" in text
    assert "nvidia.com/" in text
    assert len(text) < 500


@pytest.mark.parametrize("key", ["pct", "cores"])
@pytest.mark.parametrize("bad", ["101", "100.5", "-1", "2147483647", 200])
def test_percentage_outside_0_to_100_is_refused(key, bad):
    with pytest.raises(InputError, match="main"):
        container_request(container(gpu="1", **{key: bad}), CONFIG)


@pytest.mark.parametrize(
    ("key", "bad", "hint"),
    [
        ("mem", "16Gi", "for 16Gi of memory write 16384"),
        ("mem", "30720Mi", "for 30720Mi of memory write 30720"),
        ("mem", "16G", "write about 15258"),
        ("mem", "1500m", "a whole number of MiB"),
        ("mem", "lots", "a whole number of MiB"),
        ("gpu", "16Gi", "write a whole number"),
        ("pct", "101", "from 0 to 100"),
        ("cores", "half", "from 0 to 100"),
        ("priority", "2", "from 0 to 1"),
    ],
)
def test_refusal_names_field_and_right_form(key, bad, hint):
    asked = container(**({"gpu": "1"} | {key: bad}))
    pod = {"spec": {"initContainers": [{}], "containers": [{}, asked]}}
    with pytest.raises(InputError) as caught:
        pod_request(pod, CONFIG)
    name = next(iter(container(**{key: bad})["resources"]["limits"]))
    assert f"spec.containers[1].resources.limits[{name}]: '{bad}'" in caught.value.what
    assert hint in caught.value.hint


def test_field_of_a_request_and_of_an_init_container():
    pod = {"spec": {"initContainers": [container({"mem": "16Gi"}, gpu="1")], "containers": []}}
    with pytest.raises(InputError, match=r"spec.initContainers\[0\].resources.requests\["):
        pod_request(pod, CONFIG)


SUFFIXES = ["", "n", "u", "m", "k", "M", "G", "T", "Ki", "Mi", "Gi", "Ti", "e1", "E3", "e-2"]


@given(st.integers(0, 10**12), st.integers(0, 4), st.sampled_from(SUFFIXES), st.sampled_from("+- "))
def test_every_quantity_is_what_kubernetes_means_or_refused(digits, places, suffix, sign):
    """Nothing is ever read as another number: by exact fractions, apart from our reader."""
    factor = {
        "": 1, "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000),
        "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12,
        "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40,
        "e1": 10, "E3": 1000, "e-2": Fraction(1, 100),
    }[suffix]  # fmt: skip
    text = f"{digits:05d}"
    text = f"{text[:-places]}.{text[-places:]}" if places else text
    value = Fraction(digits, 10**places) * factor * (-1 if sign == "-" else 1)
    asked = container(gpu="1", mem=sign.strip() + text + suffix)
    if value.denominator == 1 and 0 <= value < 2**31:
        expected = {"mem_mib": int(value)} if value else {"mem_pct": 100}
        assert container_request(asked, CONFIG) == Request(count=1, **expected)
    else:
        with pytest.raises(InputError, match="gpumem"):
            container_request(asked, CONFIG)


DCU = DeviceConfig(vendors=("nvidia", "hygon"))


def test_second_vendor_has_its_own_names_and_units():
    limits = {"hygon.com/dcunum": "2", "hygon.com/dcumem": "4k", "hygon.com/dcucores": "40"}
    asked = {"name": "d", "resources": {"limits": limits}}
    expected = Request(count=2, mem_mib=4000, core_pct=40, vendor="DCU")
    assert container_request(asked, DCU) == expected
    assert container_request(asked, CONFIG) == NO_REQUEST  # where it is not configured
    only = {"name": "d", "resources": {"limits": {"hygon.com/dcunum": "1"}}}
    assert container_request(only, DCU) == Request(count=1, mem_pct=100, vendor="DCU")
    bad = {"name": "d", "resources": {"limits": limits | {"hygon.com/dcumem": "16Gi"}}}
    with pytest.raises(InputError, match="dcumem"):
        container_request(bad, DCU)


def test_cards_of_two_vendors_in_one_container_are_refused():
    limits = {"hygon.com/dcunum": "1", names.RESOURCE_COUNT: "1"}
    with pytest.raises(InputError, match="two vendors"):
        container_request({"name": "d", "resources": {"limits": limits}}, DCU)
    members = [{"resources": {"limits": {key: "1"}}} for key in limits]
    with pytest.raises(InputError, match="two vendors, DCU and NVIDIA"):
        pod_request({"spec": {"containers": members}}, DCU)


def test_constraints_are_the_vendors_own():
    notes = {names.USE_UUID: "GPU-a", "hygon.com/use-gpuuuid": "DCU-a"}
    for key, uuid, word in ((names.RESOURCE_COUNT, "GPU-a", "NVIDIA"),
                            ("hygon.com/dcunum", "DCU-a", "DCU")):  # fmt: skip
        members = [{"resources": {"limits": {key: "1"}}}]
        request = pod_request({"metadata": {"annotations": notes},
                               "spec": {"containers": members}}, DCU)  # fmt: skip
        assert (request.constraint.use_uuids, request.vendor) == ((uuid,), word)


@pytest.mark.parametrize("key", ["gpu", "mem", "pct", "cores"])
def test_limit_that_differs_from_request_is_refused(key):
    limits = {"gpu": "1", key: "2"}
    with pytest.raises(InputError, match="limit 2 and request 1"):
        container_request(container({key: "1"}, **limits), CONFIG)


def test_bad_request_is_refused_though_the_limit_is_good():
    with pytest.raises(InputError, match="16Gi"):
        container_request(container({"mem": "16Gi"}, gpu="1", mem="16384"), CONFIG)


@pytest.mark.parametrize("share", [{"mem": "100"}, {"pct": "10"}, {"cores": "30"}])
@pytest.mark.parametrize("count", [{}, {"gpu": "0"}])
def test_share_of_no_card_is_refused(share, count):
    with pytest.raises(InputError, match="share of a card"):
        container_request(container(**share, **count), CONFIG)


def test_memory_factor_is_applied_once_and_bounded():
    config = DeviceConfig(memoryFactor=10)  # R11: the unit is 10 MiB
    assert container_request(container(gpu="1", mem="300"), config).mem_mib == 3000
    assert (
        container_request(
            container(gpu="1"), DeviceConfig(memoryFactor=10, defaultMemory=50)
        ).mem_mib
        == 500
    )
    with pytest.raises(InputError, match="too large"):
        container_request(container(gpu="1", mem="2147483647"), config)


def test_defaults_of_the_configuration():
    config = DeviceConfig(defaultMemory=2000, defaultCores=25)
    assert container_request(container(gpu="1"), config) == Request(
        count=1, mem_mib=2000, core_pct=25
    )
    assert container_request(container(gpu="1", cores="0", pct="10"), config) == Request(
        count=1, mem_pct=10, core_pct=0
    )


def test_containers_come_init_first_with_their_lives():
    pod = {
        "spec": {
            "containers": [{"name": "a"}, {"name": "b"}],
            "initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}],
        }
    }
    assert container_kinds(pod) == (Kind.INIT, Kind.SIDECAR, Kind.APP, Kind.APP)


def test_constraints_and_policies_are_read():
    pod = {
        "metadata": {
            "annotations": {
                names.USE_UUID: " GPU-a , GPU-b,",
                names.NOUSE_TYPE: "T4",
                names.NODE_POLICY: "spread",
                names.CARD_POLICY: "binpack",
            }
        },
        "spec": {"containers": [container(gpu="1")]},
    }
    request = pod_request(pod, CONFIG)
    assert request.constraint.use_uuids == ("GPU-a", "GPU-b")
    assert request.constraint.nouse_types == ("T4",)
    assert (request.node_policy, request.card_policy) == ("spread", "binpack")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (names.CARD_POLICY, "topology"),
        (names.CARD_POLICY, "binpack,spread"),
        (names.CARD_POLICY, "mutex,mutex"),
        (names.CARD_POLICY, ","),
        (names.CARD_WEIGHTS, "slot=1,core=1"),
        (names.CARD_WEIGHTS, "slot=1,core=1,memory=-3"),
        (names.CARD_WEIGHTS, "slot=0,core=0,memory=0"),
        (names.CARD_WEIGHTS, "slot=1,core=1,memory=nan"),
        (names.CARD_WEIGHTS, "slot=1,core=1,memory=1,slot=1"),
        (names.NODE_POLICY, "random"),
        (names.NODE_POLICY, "mutex"),
        (names.VGPU_MODE, "mig"),
    ],
)
def test_placement_wish_that_is_not_supported_is_refused(key, value):
    pod = {
        "metadata": {"annotations": {key: value}},
        "spec": {"containers": [container(gpu="1")]},
    }
    with pytest.raises(InputError, match=key):
        pod_request(pod, CONFIG)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=6,
)


@given(
    spec=st.dictionaries(st.sampled_from(["containers", "initContainers"]), json_values),
    limits=json_values,
    annotations=json_values,
)
def test_whatever_the_pod_looks_like_it_is_read_or_refused(spec, limits, annotations):
    spec.setdefault("containers", [{"name": "x", "resources": {"limits": limits}}])
    with contextlib.suppress(InputError):
        pod_request({"metadata": {"annotations": annotations}, "spec": spec}, CONFIG)


@given(st.integers(0, 2**31 - 1))
def test_every_int32_is_read_as_itself(mib):
    if mib:
        assert container_request(container(gpu="1", mem=str(mib)), CONFIG).mem_mib == mib


@pytest.mark.parametrize("odd", [True, 1.5, [], ["1"], {"a": 1}, None])
def test_what_was_said_before_does_not_hide_what_is_wrong(odd):
    """Requests are remembered by what was written: by text, and by nothing else."""
    config = DeviceConfig()

    def container(count):
        return {"name": "c", "resources": {"limits": {names.RESOURCE_COUNT: count}}}

    for _ in range(2):
        assert container_request(container("1"), config).count == 1
        assert container_request(container(1), config).count == 1
        if odd is None:
            assert container_request(container(odd), config).count == 0
        else:
            with pytest.raises(InputError):
                container_request(container(odd), config)


def pod_of(*members, **annotations):
    return {"metadata": {"annotations": annotations}, "spec": {"containers": list(members)}}


def test_pods_that_say_the_same_get_the_same_request():
    one, other = pod_of(container(gpu="1", mem="77")), pod_of(container(gpu="1", mem="77"))
    other["metadata"] |= {"name": "other", "labels": {"a": "b"}}
    other["spec"]["containers"][0] |= {"name": "other", "image": "x"}
    found = pod_request(one, CONFIG)
    assert pod_request(other, CONFIG) is found
    other["metadata"]["annotations"] = {"unrelated": "x"}
    assert pod_request(other, CONFIG) == found
    for wish in (names.NUMA_BIND, names.USE_TYPE, names.NODE_POLICY, names.CARD_POLICY):
        value = {names.NODE_POLICY: "spread", names.CARD_POLICY: "binpack"}.get(wish, "true")
        assert pod_request(pod_of(container(gpu="1", mem="77"), **{wish: value}), CONFIG) != found


@pytest.mark.parametrize(
    ("word", "meant"),
    [("true", True), ("TRUE ", True), ("1", True), ("t", True), ("false", False), ("0", False),
     ("", False)],
)  # fmt: skip
def test_numa_bind_is_yes_or_no_as_hami_reads_it(word, meant):
    pod = pod_of(container(gpu="1", mem="77"), **{names.NUMA_BIND: word})
    assert pod_request(pod, CONFIG).constraint.numa_bind is meant


@pytest.mark.parametrize("word", ["maybe", "yes", "truе", "2", "[true]"])
def test_numa_bind_that_is_neither_is_refused(word):
    pod = pod_of(container(gpu="1", mem="77"), **{names.NUMA_BIND: word})
    with pytest.raises(InputError, match="neither true nor false"):
        pod_request(pod, CONFIG)


def test_where_a_container_ends_is_not_forgotten():
    asking = container(gpu="1", mem="77")
    nothing = {"name": "nothing"}
    orders = [pod_of(asking, nothing), pod_of(nothing, asking), pod_of(asking)]
    found = [pod_request(pod, CONFIG) for pod in orders]
    assert [tuple(r.count for r in one.containers) for one in found] == [(1, 0), (0, 1), (1,)]
    as_init = {"spec": {"initContainers": [asking], "containers": [nothing]}}
    assert pod_request(as_init, CONFIG).kinds == (Kind.INIT, Kind.APP)
    sidecar = {"spec": {"initContainers": [asking | {"restartPolicy": "Always"}]}}
    assert pod_request(sidecar, CONFIG).kinds == (Kind.SIDECAR,)


@pytest.mark.parametrize("wrong", [True, 1.5, ["1"], {"a": "b"}, "containers", "-1"])
def test_what_is_wrong_is_refused_after_the_right_was_seen(wrong):
    assert pod_request(pod_of(container(gpu="1")), CONFIG).asks
    for _ in range(2):
        with pytest.raises(InputError):
            pod_request(pod_of(container(gpu=wrong)), CONFIG)
