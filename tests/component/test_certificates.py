"""The renewal of certificates as its own account, against a real API server."""

from __future__ import annotations

import datetime as dt
import subprocess

import pytest
import yaml

from testbed.lab.deploy import StackImages, StackValues, render
from testbed.lab.deploy.rotation import certificates_for
from testbed.lab.kube import Kube
from testbed.stack.certificates import sets as certs

HOOKS = "admissionregistration.k8s.io/v1"


@pytest.fixture
def deployed(api_server):
    """A deployment whose certificates end in ten days; its webhook is shown nothing."""
    namespace = api_server.namespace()
    values = StackValues(namespace=namespace, images=StackImages(base="b:1", kube_scheduler="s:1"))
    made = dt.datetime.now(dt.UTC) - dt.timedelta(days=355)
    manifests = render(values, certs.make(namespace, now=made))
    kinds = ("Secret", "Deployment", "ServiceAccount", "Role", "RoleBinding", "ClusterRole",
             "ClusterRoleBinding", "MutatingWebhookConfiguration")  # fmt: skip
    manifests = [found for found in manifests if found["kind"] in kinds]
    for hook in manifests[-1]["webhooks"]:
        hook["namespaceSelector"] = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    with Kube(api_server.kubeconfig) as kube:
        kube.apply(manifests)
        try:
            yield kube, values
        finally:
            kube.delete(HOOKS, "MutatingWebhookConfiguration", f"{namespace}-webhook")


def renew(api_server, python, values, user):
    api_server.identity(user)
    # The client takes a colon in a path for a list of paths.
    kubeconfig = api_server.kubeconfig_of(user).rename(api_server.folder / "renewal.kubeconfig")
    command = [
        python, "-m", "testbed.stack.certificates", f"--namespace={values.namespace}",
        f"--registration={values.namespace}-webhook", "--scheduler=vgpu-scheduler",
        f"--kubeconfig={kubeconfig}",
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)


def versions(kube, values):
    return [
        kube.get("v1", "Secret", name, values.namespace)["metadata"]["resourceVersion"]
        for name in ("vgpu-webhook-tls", "vgpu-extender-tls", "vgpu-scheduler-client")
    ]


def test_the_accounts_rights_suffice_and_a_second_run_changes_nothing(api_server, python, deployed):
    kube, values = deployed
    before = certificates_for(kube, values)  # what a deployment would do: a new set as well
    account = f"system:serviceaccount:{values.namespace}:vgpu-certificates"
    first = renew(api_server, python, values, account)
    assert first.returncode == 0 and "certificates are new" in first.stderr, first.stderr
    found = certificates_for(kube, values)
    assert certs.usable(found, values.namespace, days=300) and found.ca != before.ca
    assert found.trusted.count("BEGIN CERTIFICATE") == 2
    deployment = kube.get("apps/v1", "Deployment", "vgpu-scheduler", values.namespace)
    notes = deployment["spec"]["template"]["metadata"]["annotations"]
    assert notes["vgpu-testbed.dev/certificates"] == certs.scheduler_digest(found)
    assert deployment["spec"]["template"]["spec"]["containers"], "the rest is as it was"

    seen = versions(kube, values)
    second = renew(api_server, python, values, account)
    assert second.returncode == 0 and "certificates are kept" in second.stderr, second.stderr
    assert versions(kube, values) == seen
    assert "PRIVATE KEY" not in first.stderr + second.stderr


def test_another_account_cannot(api_server, python, deployed):
    kube, values = deployed
    seen = versions(kube, values)
    found = renew(api_server, python, values, "somebody")
    assert found.returncode == 2 and "403" in found.stderr, found.stderr
    assert versions(kube, values) == seen


def test_the_kubeconfig_is_one_line_of_input(api_server, python, deployed, tmp_path):
    _, values = deployed
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump({"kind": "Config"}))
    command = [python, "-m", "testbed.stack.certificates", "--registration=r", "--scheduler=s",
               f"--namespace={values.namespace}", f"--kubeconfig={path}"]  # fmt: skip
    found = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert found.returncode == 2 and "Traceback" not in found.stderr
