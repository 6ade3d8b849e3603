"""What a program tells of itself when an answer fails."""

from __future__ import annotations

import http.client
import logging
from collections.abc import Iterator

import pytest

from testbed.errors import CodecError, InputError
from testbed.stack.httpserver import HttpServer, Query, Reply


def bad_input(_: Query) -> Reply:
    raise InputError("no such time")


def unreadable(_: Query) -> Reply:
    raise CodecError("the state is no state")


def gone(_: Query) -> Reply:
    raise FileNotFoundError("no file")


def defect(_: Query) -> Reply:
    raise ZeroDivisionError("a defect of ours")


@pytest.fixture
def port() -> Iterator[int]:
    routes = {"/input": bad_input, "/codec": unreadable, "/gone": gone, "/defect": defect}
    server = HttpServer(("127.0.0.1", 0), routes)
    yield server.port
    server.close()


def ask(port: int, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("path", "status", "word"),
    [("/input", 400, "no such time"), ("/codec", 500, "no state"), ("/gone", 500, "no file")],
)
def test_the_asker_is_told_why(port: int, path: str, status: int, word: str) -> None:
    got, text = ask(port, path)
    assert got == status and word in text


def test_a_defect_is_logged(port: int, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR), pytest.raises(http.client.HTTPException):
        ask(port, "/defect")
    assert "a defect of ours" in caplog.text
