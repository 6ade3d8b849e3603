"""Who may promise: the lease of the scheduler beside the extender, and HAMi's node lock."""

from __future__ import annotations

import asyncio

import pytest

from testbed.errors import InputError
from testbed.stack import names
from testbed.stack.extender.api import AnswerLost, ApiError, Unreachable, insist
from testbed.stack.extender.leadership import Leadership
from testbed.stack.extender.nodelock import NodeLocks, decode_lock, encode_lock
from testbed.stack.model import PodKey

A = PodKey(namespace="ns", name="a", uid="ua")
B = PodKey(namespace="ns", name="b", uid="ub")


def lease(holder="host_7", renewed="1", lasts=10):
    spec = {"holderIdentity": holder, "renewTime": renewed, "leaseDurationSeconds": lasts}
    return {"spec": spec}


def test_it_leads_while_its_scheduler_renews_and_stops_before_the_lease_is_over():
    found = Leadership(identity="host", margin_s=5)
    assert not found.leads(0)
    found.observe(lease(), 100)
    assert found.leads(104.9)
    assert not found.leads(105)
    found.observe(lease(), 106)  # the same renewal, read again: it is no younger
    assert not found.leads(106)
    found.observe(lease(renewed="2"), 107)
    assert found.leads(111)


@pytest.mark.parametrize("holder", ["other_7", "", "hos_t", "host2_7", "_host"])
def test_it_stands_by_while_another_holds_the_lease(holder):
    found = Leadership(identity="host")
    found.observe(lease(holder), 100)
    assert not found.leads(100)


def test_no_lease_is_nobodys():
    found = Leadership(identity="host")
    found.observe(lease(), 100)
    found.observe(None, 101)
    assert not found.leads(101)
    assert found.holder == ""


def test_a_short_lease_is_trusted_for_half_of_it():
    found = Leadership(identity="host", margin_s=5)
    found.observe(lease(lasts=2), 100)
    assert found.leads(100.9) and not found.leads(101)


# --- HAMi's lock ---------------------------------------------------------------------


class Nodes:
    """One node, with versions as the API server keeps them."""

    def __init__(self, lock=None, pods=()):
        self.annotations = {} if lock is None else {names.NODE_LOCK: lock}
        self.version = 1
        self.pods = dict(pods)
        self.conflicts = 0
        self.lost = 0  # so many writes are done and get no answer

    async def read_node(self, name):
        if name != "n":
            return None
        return {
            "metadata": {
                "resourceVersion": str(self.version),
                "annotations": dict(self.annotations),
            }
        }

    async def read_pod(self, namespace, name):
        phase = self.pods.get(f"{namespace}/{name}")
        return None if phase is None else {"status": {"phase": phase}}

    async def annotate_node(self, name, annotations, version):
        if self.conflicts:
            self.conflicts -= 1
            self.version += 1
        if version != str(self.version):
            raise ApiError("PATCH node", 409, "changed")
        self.version += 1
        for key, value in annotations.items():
            if value is None:
                self.annotations.pop(key, None)
            else:
                self.annotations[key] = value
        if self.lost:
            self.lost -= 1
            raise AnswerLost("PATCH node got no answer")


def locks(api, now=1_790_000_000.0):
    async def sleep(_seconds):
        return

    return NodeLocks(api, lasts_s=300, wall=lambda: now, sleep=sleep)


NOW = 1_790_000_000.0


def test_a_lock_is_taken_re_entered_and_given_back_by_its_owner_only():
    api = Nodes(pods=[("ns/a", "Pending")])
    asyncio.run(locks(api).take("n", A))
    assert decode_lock(api.annotations[names.NODE_LOCK]).owned_by(A)
    asyncio.run(locks(api).take("n", A))
    with pytest.raises(InputError) as caught:
        asyncio.run(locks(api).take("n", B))
    assert "ns/a" in caught.value.text()
    asyncio.run(locks(api).give_back("n", B))
    assert names.NODE_LOCK in api.annotations
    asyncio.run(locks(api).give_back("n", A))
    assert api.annotations == {}


@pytest.mark.parametrize(
    ("lock", "pods", "free"),
    [
        (encode_lock(A, NOW - 299), [("ns/a", "Running")], False),
        (encode_lock(A, NOW - 300), [("ns/a", "Running")], True),  # expired
        (encode_lock(A, NOW), [], True),  # L8: the owner was deleted
        (encode_lock(A, NOW), [("ns/a", "Succeeded")], True),  # L9
        (encode_lock(A, NOW), [("ns/a", "Failed")], True),
        ("2026-09-21T14:13:00Z", [], False),  # the older form names no owner
        ("2020-01-01T00:00:00Z", [], True),
        ("not a time,ns,a", [("ns/a", "Running")], True),
    ],
)
def test_a_lock_of_others_is_taken_over_when_it_is_stale(lock, pods, free):
    api = Nodes(lock, pods)
    if free:
        asyncio.run(locks(api).take("n", B))
        assert decode_lock(api.annotations[names.NODE_LOCK]).owned_by(B)
    else:
        with pytest.raises(InputError):
            asyncio.run(locks(api).take("n", B))
        assert api.annotations[names.NODE_LOCK] == lock


def test_a_node_that_others_change_is_tried_again_but_not_for_ever():
    api = Nodes()
    api.conflicts = 2
    asyncio.run(locks(api).take("n", A))
    api = Nodes()
    api.conflicts = 100
    with pytest.raises(InputError):
        asyncio.run(locks(api).take("n", A))
    with pytest.raises(InputError):
        asyncio.run(locks(Nodes()).take("gone", A))


def test_a_lock_whose_write_got_no_answer_is_looked_up():
    api = Nodes()
    api.lost = 1
    asyncio.run(locks(api).take("n", A))
    assert decode_lock(api.annotations[names.NODE_LOCK]).owned_by(A)
    api.lost = 1
    asyncio.run(locks(api).give_back("n", A))
    assert api.annotations == {}
    api.lost = 100
    with pytest.raises(AnswerLost):
        asyncio.run(locks(api).take("n", A))


def test_the_lock_has_hamis_form():
    assert encode_lock(A, 0) == "1970-01-01T00:00:00Z,ns,a"
    assert decode_lock("") is None
    assert decode_lock("1970-01-01T00:00:05+00:00,ns,a").taken == 5


# --- calls without an answer -----------------------------------------------------------


@pytest.mark.parametrize(
    ("faults", "calls", "raised"),
    [
        ([], 1, None),
        ([AnswerLost("x"), Unreachable("x"), AnswerLost("x")], 4, None),
        ([AnswerLost("x")] * 4, 4, AnswerLost),
        ([AnswerLost("x"), ApiError("x", 429, "budget")], 2, ApiError),
        ([ApiError("x", 404, "gone")], 1, ApiError),
    ],
)
def test_a_call_without_an_answer_is_made_again_and_a_refused_one_is_not(faults, calls, raised):
    made, pauses, left = [], [], list(faults)

    async def call():
        made.append(1)
        if left:
            raise left.pop(0)

    async def sleep(seconds):
        pauses.append(seconds)

    if raised is None:
        asyncio.run(insist(call, sleep))
    else:
        with pytest.raises(raised):
            asyncio.run(insist(call, sleep))
    assert (len(made), len(pauses)) == (calls, calls - 1)
