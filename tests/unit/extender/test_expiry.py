"""When certificates end, as the metrics tell it."""

import datetime as dt

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from testbed.stack.certificates.sets import make
from testbed.stack.tls import EXPIRY_METRIC, expires, expiry_lines


def certificate(ends, *, key=None, name="x" * 40):
    own = key or ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    built = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(own.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(dt.datetime(1960, 1, 1, tzinfo=dt.UTC))
        .not_valid_after(ends)
        .sign(own, hashes.SHA256())
    )
    return built.public_bytes(serialization.Encoding.PEM).decode()


@pytest.mark.parametrize("year", [1970, 1999, 2026, 2049, 2050, 2199])
def test_the_end_of_a_certificate(year):
    moment = dt.datetime(year, 11, 30, 23, 59, 58, tzinfo=dt.UTC)
    assert expires("a comment\n" + certificate(moment)) == moment.timestamp()


def test_other_keys_and_names_of_other_lengths():
    moment = dt.datetime(2031, 2, 3, 4, 5, 6, tzinfo=dt.UTC)
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    assert expires(certificate(moment, key=key, name="y")) == moment.timestamp()


def test_the_first_of_a_chain():
    found = make("test", now=dt.datetime(2026, 5, 6, tzinfo=dt.UTC))
    first = x509.load_pem_x509_certificate(found.extender.cert.encode())
    later = certificate(dt.datetime(2090, 1, 1, tzinfo=dt.UTC))
    assert expires(found.extender.cert + later) == first.not_valid_after_utc.timestamp()


@pytest.mark.parametrize(
    "text",
    ["", "no", "-----BEGIN CERTIFICATE-----\nMAUwAwIB\n-----END CERTIFICATE-----\n"],
)
def test_what_is_no_certificate_is_left_out(tmp_path, text):
    with pytest.raises((ValueError, IndexError)):
        expires(text)
    (tmp_path / "bad").write_text(text)
    (tmp_path / "good").write_text(certificate(dt.datetime(2030, 1, 1, tzinfo=dt.UTC)))
    files = {"none": tmp_path / "absent", "bad": tmp_path / "bad", "serving": tmp_path / "good"}
    *_, line = expiry_lines("extender", files)
    assert line == (
        f'{EXPIRY_METRIC}{{component="extender",certificate="serving"}} '
        f"{dt.datetime(2030, 1, 1, tzinfo=dt.UTC).timestamp():.0f}"
    )
    assert len(list(expiry_lines("extender", files))) == 3
