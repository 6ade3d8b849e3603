"""What could be a secret is cut out; everything else stays."""

from __future__ import annotations

import base64

import pytest

from testbed.lab.redact import redact, redacted

TOKEN = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrdWJlcm5ldGVzIn0.c2lnbmF0dXJlLWhlcmU"
KEY = "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEE\n-----END EC PRIVATE KEY-----"


#: The signature that kubeadm writes beside a kubeconfig which everybody may read (RFC 7515, F).
DETACHED = "eyJhbGciOiJIUzI1NiIsImtpZCI6ImFiY2RlZiJ9..c2lnbmF0dXJlLWhlcmU"


@pytest.mark.parametrize(
    "secret", [TOKEN, DETACHED, KEY, "Authorization: Bearer abcdefghijklmnop1234"]
)
def test_secrets_in_a_text(secret):
    text = f"before {secret} after".encode()
    found = redact(text)
    assert found.startswith(b"before ") and found.endswith(b" after")
    assert b"[redacted]" in found
    for part in (b"eyJ", b"c2lnbm", b"MHcC", b"abcdefghijkl"):
        assert part not in found


def test_certificates_and_names_stay():
    text = b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----"
    assert redact(text) == text
    assert redacted({"secretName": "vgpu-webhook-tls", "kind": "Secret"}) == {
        "secretName": "vgpu-webhook-tls",
        "kind": "Secret",
    }


def test_values_of_variables_that_are_named_so():
    env = [
        {"name": "DB_PASSWORD", "value": "hunter2"},
        {"name": "AWS_ACCESS_KEY_ID", "value": "AKIA"},
        {"name": "HF_TOKEN", "value": "hf_x"},
        {"name": "CUDA_DEVICE_MEMORY_LIMIT_0", "value": "30720m"},
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "token"}}},
    ]
    found = redacted({"spec": {"containers": [{"env": env}]}})["spec"]["containers"][0]["env"]
    assert [each.get("value") for each in found[:4]] == ["[redacted]"] * 3 + ["30720m"]
    assert found[4]["valueFrom"]["secretKeyRef"]["name"] == "s"


def test_copies_of_objects_go():
    key = "kubectl.kubernetes.io/last-applied-configuration"
    assert redacted({"annotations": {key: "PASSWORD", "a": "b"}}) == {"annotations": {"a": "b"}}


def test_data_that_is_named_so():
    assert redacted({"data": {"password": "x", "config.yaml": f"a: {TOKEN}"}}) == {
        "data": {"password": "[redacted]", "config.yaml": "a: [redacted]"}
    }


def test_a_key_in_base64_goes_and_a_certificate_stays() -> None:
    def encoded(kind: str) -> bytes:
        text = f"-----BEGIN {kind}-----\nMIIB\n-----END {kind}-----\n"
        return base64.b64encode(text.encode())

    for kind in ("PRIVATE KEY", "EC PRIVATE KEY", "RSA PRIVATE KEY"):
        text = b"client-key-data: " + encoded(kind) + b"\n"
        assert redact(text) == b"client-key-data: [redacted]\n"
    kept = b"certificate-authority-data: " + encoded("CERTIFICATE") + b"\n"
    assert redact(kept) == kept
