import ssl
import stat

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from testbed.lab.cluster.process import layout, pki


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folders = layout.Folders(tmp_path_factory.mktemp("state") / "vgpu")
    folders.pki.mkdir(parents=True)
    pki.write_all(folders, "vgpu", layout.nodes("vgpu", 2), 12345)
    return folders


def certificate(path):
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_only_the_owner_reads_keys_and_kubeconfigs(written):
    files = [each for each in written.top.rglob("*") if each.is_file()]
    assert len(files) > 15
    assert {stat.S_IMODE(each.stat().st_mode) for each in files} == {0o600}


def test_every_certificate_is_of_this_cluster_s_authority(written):
    root = certificate(written.pki / "control" / "ca.crt")
    proxies = certificate(written.pki / "control" / "front-proxy-ca.crt")
    for path in written.pki.rglob("*.crt"):
        found = certificate(path)
        issuer = proxies if "front-proxy" in path.name else root
        found.verify_directly_issued_by(issuer)


def test_keys_belong_to_their_certificates(written):
    for path in written.pki.rglob("*.crt"):
        key = path.with_suffix(".key")
        if key.exists():
            ours = load_pem_private_key(key.read_bytes(), None).public_key()
            assert ours == certificate(path).public_key()


def test_a_kubelet_can_be_verified_and_is_a_node(written):
    found = certificate(written.pki / "vgpu-node-2" / "kubelet-server.crt")
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(each.value) for each in names] == ["vgpu-node-2", "10.99.0.102"]
    usage = found.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.SERVER_AUTH]


def test_a_node_has_no_authority_key_and_no_other_nodes(written):
    own = {each.name for each in (written.pki / "vgpu-node-1").iterdir()}
    assert own == {
        *("ca.crt", "kubelet-server.crt", "kubelet-server.key"),
        *("kubelet.kubeconfig", "kube-proxy.kubeconfig"),
    }


def test_the_user_of_a_kubeconfig(written, tmp_path):
    def subject(path):
        document = yaml.safe_load(path.read_text())
        import base64

        pem = base64.b64decode(document["users"][0]["user"]["client-certificate-data"])
        names = x509.load_pem_x509_certificate(pem).subject
        return (
            names.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value,
            [each.value for each in names.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)],
        )

    node = written.pki / "vgpu-node-1"
    assert subject(node / "kubelet.kubeconfig") == ("system:node:vgpu-node-1", ["system:nodes"])
    assert subject(node / "kube-proxy.kubeconfig") == ("system:kube-proxy", [])
    control = written.pki / "control"
    assert subject(control / "kube-scheduler.kubeconfig") == ("system:kube-scheduler", [])
    assert subject(written.kubeconfig)[1] == ["system:masters"]


def test_the_administrator_s_kubeconfig(written):
    document = yaml.safe_load(written.kubeconfig.read_text())
    assert document["current-context"] == "testbed-vgpu"
    assert document["clusters"][0]["cluster"]["server"] == "https://127.0.0.1:12345"
    context = ssl.create_default_context(cafile=str(written.authority))
    context.load_cert_chain(str(written.admin))
