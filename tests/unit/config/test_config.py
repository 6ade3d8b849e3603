"""The device configuration document."""

from __future__ import annotations

import pytest

from testbed.errors import InputError
from testbed.stack.config import DeviceConfig, load, parse


@pytest.mark.parametrize("text", ["", "  \n", "{}"])
def test_empty_is_the_default(text):
    assert parse(text) == DeviceConfig()


@pytest.mark.parametrize(
    ("text", "value"), [("on", "on"), ("off", "off"), ("'off'", "off"), ("true", "on")]
)
def test_enforcement_in_every_spelling_of_yaml(text, value):
    assert parse(f"enforcement: {text}").enforcement == value


def test_hami_names_are_read():
    config = parse(b"resourceMemoryName: x.dev/mem\nmemoryFactor: 10\noverwriteEnv: true\n")
    assert (config.resourceMemoryName, config.memoryFactor, config.overwriteEnv) == (
        "x.dev/mem",
        10,
        True,
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("deviceSplitCuont: 5", "did you mean deviceSplitCount?"),
        ("memoryFactor: ten", "memoryFactor"),
        ("gpuSchedulerPolicy: binpack,spread", "gpuSchedulerPolicy"),
        ("enforcement: maybe", "enforcement"),
        ("[1]", "object"),
        ("null", "object"),
        ("a: [", ""),
    ],
)
def test_wrong_documents_are_refused_with_the_place(text, words):
    with pytest.raises(InputError) as caught:
        parse(text)
    assert words in caught.value.text()


def test_missing_file_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match="absent"):
        load(tmp_path / "absent")
