"""A cluster that places pods at once, by the stack's own functions; rules of it can break."""

from __future__ import annotations

import copy
import json

from testbed.lab.kube import ApiError
from testbed.stack import names
from testbed.stack.codec import decode_register, encode_pod_shares
from testbed.stack.codec.links import decode_links
from testbed.stack.config import DeviceConfig
from testbed.stack.placement import fold
from testbed.stack.placement.decide import Offer, decide
from testbed.stack.placement.effective import Kind
from testbed.stack.placement.ledger import Ledger
from testbed.stack.placement.quota import Amount, Quotas
from testbed.stack.placement.reasons import explain
from testbed.stack.placement.request import container_kinds, initialised, pod_request


class Cluster:
    """API server, admission, scheduler and extender in one, as far as a staging needs them.

    Args:
        broken: A rule that does not work: ``policy``, ``peak``, ``shrink``, ``quota``,
            ``early`` (admission knows no quota), ``books``, ``reason``.
    """

    def __init__(self, broken=""):
        self.broken = broken
        self.nodes, self.pods, self.spaces, self.shares = {}, {}, set(), {}
        self.cards, self.quotas = Ledger(), Quotas()
        self.ever = 0

    # --- what Kube offers ---------------------------------------------------------
    def create(self, manifest, *, dry_run=False):
        made = copy.deepcopy(manifest)
        kind, name = made["kind"], made["metadata"]["name"]
        if kind == "Namespace":
            self.spaces.add(name)
        elif kind == "Node":
            assert made["spec"]["taints"], "the stack's own pods would come"
            self.nodes[name] = made
        elif kind == "ResourceQuota":
            hard = made["spec"]["hard"]
            bounds = [
                int(hard[key]) if (key := f"limits.{resource}") in hard else None
                for resource in (names.RESOURCE_MEMORY, names.RESOURCE_CORES)
            ]
            amount = Amount(mem_mib=bounds[0], core_pct=bounds[1])
            self.quotas.set(made["metadata"]["namespace"], name, amount)
        else:
            self._admit(made)
            if not dry_run:
                self.ever += 1
                made["metadata"]["uid"] = f"uid-{self.ever}"
                made["status"] = {}
                self.pods[name] = made
                self._schedule()
        return made

    def patch(self, _version, kind, name, body, _namespace=None, *, subresource=""):
        found = (self.nodes if kind == "Node" else self.pods)[name]
        if subresource:
            found.setdefault("status", {}).update(body["status"])
        else:
            found["metadata"].setdefault("annotations", {}).update(body["metadata"]["annotations"])
        if kind == "Node":
            notes = found["metadata"].get("annotations", {})
            links = decode_links(notes.get(names.NODE_SCORE, ""))
            self.cards.set_node(name, decode_register(notes[names.NODE_REGISTER]), links=links)
        elif name in self.shares:
            self._book(found)
        self._schedule()
        return copy.deepcopy(found)

    def get(self, _version, kind, name, _namespace=None):
        return copy.deepcopy((self.nodes if kind == "Node" else self.pods)[name])

    def list(self, _version, kind, _namespace=None, **_):
        assert kind == "Pod"
        return copy.deepcopy(list(self.pods.values()))

    def delete(self, _version, kind, name, _namespace=None, *, grace_s=None):
        if kind == "Pod":
            assert grace_s == 0, "no kubelet would confirm its end"
            uid = self.pods.pop(name)["metadata"]["uid"]
            self.shares.pop(name, None)
            self.cards.release(uid)
            self.quotas.release(uid)
            self._schedule()
        elif kind == "Node":
            del self.nodes[name]
        else:
            self.spaces.discard(name)

    def ledger(self, _kube=None):
        wrong = 1 if self.broken == "books" else 0
        nodes = {
            name: {
                "cards": [
                    {
                        "index": card.index,
                        "slots": {"used": used.slots},
                        "mem_mib": {"used": used.mem_mib + (wrong if used.slots else 0)},
                        "core_pct": {"used": used.core_pct},
                    }
                    for card, used in self.cards.usage(name)
                ]
            }
            for name in self.cards.nodes()
        }
        held = {self.pods[name]["metadata"]["uid"]: "" for name in self.shares}
        return json.loads(json.dumps({"synced": True, "nodes": nodes, "pods": held}))

    # --- what happens in it -------------------------------------------------------
    def _admit(self, pod):
        room = self.quotas.room(pod["metadata"]["namespace"])
        probe = pod["metadata"]["name"] == "probe"
        if room.unbounded or (self.broken == "early" and not probe):
            return
        limits = pod["spec"]["containers"][0].get("resources", {}).get("limits", {})
        count = int(limits.get(names.RESOURCE_COUNT, 0))
        asked = (
            (names.RESOURCE_MEMORY, room.mem_mib), (names.RESOURCE_CORES, room.core_pct),
        )  # fmt: skip
        if any(left is not None and count * int(limits.get(key, 0)) > left for key, left in asked):
            raise ApiError(
                "pod cannot be created", status=403, reason="Forbidden",
                message="exceeding resource quota of gpumem",
            )  # fmt: skip

    def _schedule(self):
        for name, pod in self.pods.items():
            if not pod["spec"].get("nodeName"):
                self._place(name, pod)

    def _place(self, name, pod):
        asked = copy.deepcopy(pod)
        if self.broken == "policy":
            asked["metadata"]["annotations"] = {}
        request = pod_request(asked, DeviceConfig())
        wanted = pod["spec"]["nodeSelector"].items()
        nodes = [key for key, node in self.nodes.items()
                 if wanted <= node["metadata"]["labels"].items()]  # fmt: skip
        if not request.asks:
            pod["spec"]["nodeName"] = nodes[0]
            return
        room = self.quotas.room(pod["metadata"]["namespace"])
        if self.broken == "quota":
            room = Amount()
        choice = decide(self.cards, request, Offer.of(nodes), room)
        if choice is None:
            words = explain(self.cards, request, nodes, room).counts
            text = "no reason" if self.broken == "reason" else f"0 nodes are available: {words}"
            pod["status"]["conditions"] = [
                {"type": "PodScheduled", "reason": "Unschedulable", "message": text}
            ]
            return
        pod["spec"]["nodeName"] = choice.node
        notes = pod["metadata"].setdefault("annotations", {})
        notes[names.POD_ALLOCATED] = encode_pod_shares(choice.shares)
        self.shares[name] = choice.shares
        self._book(pod)

    def _book(self, pod):
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        kinds = container_kinds(pod)
        if self.broken == "peak":
            kinds = tuple(Kind.APP for _ in kinds)
        done = initialised(pod) and self.broken != "shrink"
        charges = fold(self.shares[name], kinds, initialised=done)
        self.cards.promise(uid, pod["spec"]["nodeName"], charges)
        self.quotas.release(uid)
        self.quotas.charge(uid, pod["metadata"]["namespace"], charges.values())
