"""The reader and writer: what is read comes back, what is no JSON is refused."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

FUZZ = settings(
    max_examples=120,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def drive(program: Path, text: bytes, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    result = subprocess.run(
        [str(program), *arguments], input=text, capture_output=True, timeout=120, check=False
    )
    assert result.returncode in (0, 3), result.stderr.decode(errors="replace")
    return result


def python_reads(text: bytes) -> Any:
    """Python's reader made strict: NaN and Infinity are no JSON."""

    def refuse(name: str) -> Any:
        raise ValueError(name)

    return json.loads(text.decode("utf-8", errors="surrogateescape"), parse_constant=refuse)


@FUZZ
@given(values, st.sampled_from([None, 1, "\t"]), st.booleans())
def test_what_is_read_comes_back(
    json_driver: Path, value: object, indent: int | str | None, ascii_only: bool
) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    result = drive(json_driver, text.encode("utf-8", errors="surrogatepass"))
    assert result.returncode == 0
    again = result.stdout.decode("utf-8", errors="surrogatepass")
    assert json.loads(again) == value
    assert again == json.dumps(value, separators=(",", ":"), ensure_ascii=ascii_only)


@FUZZ
@given(values, st.data())
def test_damaged_text_is_refused_as_python_refuses_it(
    json_driver: Path, value: object, data: st.DataObject
) -> None:
    text = bytearray(json.dumps({"k": value}).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text) - 1))
        change = data.draw(st.sampled_from(["cut", "set", "drop"]))
        if change == "cut" and at:
            del text[at:]
        elif change == "set":
            text[at] = data.draw(st.sampled_from(b'{}[]",:\\0-e.u tn\x00\x1f\xff'))
        elif len(text) > 1:
            del text[at]
    result = drive(json_driver, bytes(text))
    try:
        python_reads(bytes(text))
    except ValueError:
        assert result.returncode == 3
    else:
        assert result.returncode == 0


@settings(parent=FUZZ, max_examples=60)
@given(st.binary(max_size=200))
def test_any_bytes_end_in_order(json_driver: Path, text: bytes) -> None:
    drive(json_driver, text)


@pytest.mark.parametrize(
    "text",
    [
        "18446744073709551615",
        "-9223372036854775808",
        "123456789012345678901234567890.5e-400",
        "-0",
        "1E+2",
        '"\\u00e4\\/\\ud83d\\ude00"',
        '{"a":1,"a":2}',
        '{"":{"x":[[],{}]}}',
    ],
)
def test_text_of_scalars_is_kept(json_driver: Path, text: str) -> None:
    assert drive(json_driver, text.encode()).stdout.decode() == text


MALFORMED = [
    *("", " ", "01", "1.", ".5", "+1", "1e", "tru", "truex", "nul"),
    *('"', '"\\x"', '"\\u12"', '"\n"'),
    *("[1,]", "[,]", "[1 2]", "1 2", "[", "]"),
    *('{"a"}', '{"a":}', '{"a":1,}', "{a:1}"),
]


@pytest.mark.parametrize("text", MALFORMED)
def test_malformed_text_is_refused(json_driver: Path, text: str) -> None:
    result = drive(json_driver, text.encode())
    assert result.returncode == 3
    assert b" at " in result.stderr


def test_depth_is_bounded(json_driver: Path) -> None:
    assert drive(json_driver, b"[" * 100 + b"]" * 100).returncode == 0
    deep = drive(json_driver, b"[" * 1_000_000)
    assert deep.returncode == 3
    assert b"too deep" in deep.stderr


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ('{"a":1,"b":2,"a":3}', '{"b":2}'),
        ('{"\\u0061":1,"b":2}', '{"b":2}'),
        ('{"aa":1,"b":{"a":1}}', '{"aa":1,"b":{"a":1}}'),
        ("[1]", "[1]"),
    ],
)
def test_members_go_by_name_however_it_is_written(json_driver: Path, text: str, left: str) -> None:
    assert drive(json_driver, text.encode(), "a").stdout.decode() == left


@FUZZ
@given(st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\x00")))
def test_content_of_strings(json_driver: Path, content: str) -> None:
    escaped = json.dumps(content).encode()
    assert drive(json_driver, escaped).stderr.decode() == content


@pytest.mark.parametrize("text", ['"a\\u0000b"', '"\\ud800"', '"\\udc00\\ud800"', '"\\ud800x"'])
def test_strings_that_are_no_text_have_no_content(json_driver: Path, text: str) -> None:
    result = drive(json_driver, text.encode())
    assert (result.returncode, result.stdout.decode(), result.stderr) == (0, text, b"")
