"""Header blocks: the examples of RFC 7541, appendix C, and what is none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.stack.extender.hpack import LIST_BYTES, Decoder, _unpacked, answer_block

FIRST = [(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/")]
HOST = (b":authority", b"www.example.com")
SECURE = [(b":method", b"GET"), (b":scheme", b"https"), (b":path", b"/index.html"), HOST]


@pytest.mark.parametrize(
    "blocks",
    [
        (  # C.3
            "828684410f7777772e6578616d706c652e636f6d",
            "828684be58086e6f2d6361636865",
            "828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565",
        ),
        (  # C.4, packed
            "828684418cf1e3c2e5f23a6ba0ab90f4ff",
            "828684be5886a8eb10649cbf",
            "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
        ),
    ],
)
def test_requests_that_build_on_each_other(blocks):
    decoder = Decoder()
    assert [decoder.decode(bytes.fromhex(block)) for block in blocks] == [
        [*FIRST, HOST],
        [*FIRST, HOST, (b"cache-control", b"no-cache")],
        [*SECURE, (b"custom-key", b"custom-value")],
    ]


@pytest.mark.parametrize(
    ("block", "fields"),
    [
        ("400a637573746f6d2d6b65790d637573746f6d2d686561646572", (b"custom-key", b"custom-header")),
        ("040c2f73616d706c652f70617468", (b":path", b"/sample/path")),
        ("100870617373776f726406736563726574", (b"password", b"secret")),
        ("82", (b":method", b"GET")),
    ],
)
def test_each_form_of_a_field(block, fields):  # C.2
    assert Decoder().decode(bytes.fromhex(block)) == [fields]


def test_what_a_smaller_table_drops_is_gone():
    decoder = Decoder()
    kept = bytes.fromhex("400161016240016301640082")[:-2]
    assert decoder.decode(kept) == [(b"a", b"b"), (b"c", b"d")]
    assert decoder.decode(b"\xbe\xbf") == [(b"c", b"d"), (b"a", b"b")]
    assert decoder.decode(b"\x3f\x03\xbe") == [(b"c", b"d")]  # 34 bytes: one entry
    with pytest.raises(ValueError, match="no entry 63"):
        decoder.decode(b"\xbf")
    assert decoder.decode(b"\x20\x82") == [(b":method", b"GET")]
    with pytest.raises(ValueError, match="no entry 62"):
        decoder.decode(b"\xbe")


@pytest.mark.parametrize(
    "block",
    [
        "80",  # there is no entry 0
        "be",  # nor any of its own yet
        "8220",  # a size after a field
        "3fe23f",  # 8,193 bytes: more than agreed
        "ffffffffffff0f",  # a number of 32 bits and more
        "ff",  # a number that is cut off
        "4003616263",  # no value
        "4005616263",  # a name that is cut off
        "418dffffffff",  # a packed one that is cut off
        "4184ffffffff",  # the end's code
        "418100",  # padded with noughts
    ],
)
def test_what_is_no_block(block):
    with pytest.raises(ValueError, match=r"\w"):
        Decoder().decode(bytes.fromhex(block))


def test_what_is_left_of_a_byte_is_ones():
    assert Decoder().decode(b"\x41\x81\x07") == [(b":authority", b"0")]


def test_a_short_block_that_stands_for_a_long_list():
    decoder = Decoder()
    value = b"x" * 3000
    decoder.decode(b"\x40\x01a\x7f\xb9\x16" + value)
    with pytest.raises(ValueError, match="bytes of fields"):
        decoder.decode(b"\xbe" * (LIST_BYTES // 3000 + 1))


@given(st.binary(max_size=60))
def test_bytes_of_any_kind_raise_nothing_else(block):
    try:
        Decoder().decode(block)
    except ValueError:
        return


def test_an_answers_block_enters_no_table():
    decoder = Decoder()
    for status in (200, 404, 413):
        found = decoder.decode(answer_block(status, "text/plain", 12, "Mon"))
        assert found == [
            (b":status", str(status).encode()),
            (b"content-type", b"text/plain"),
            (b"content-length", b"12"),
            (b"date", b"Mon"),
        ]
    with pytest.raises(ValueError, match="no entry 62"):
        decoder.decode(b"\xbe")


def test_every_byte_has_a_code_of_its_own():
    """The example of C.6.1, and the longest codes."""
    packed = bytes.fromhex("d07abe941054d444a8200595040b8166e082a62d1bff")
    assert _unpacked(packed) == b"Mon, 21 Oct 2013 20:13:21 GMT"
