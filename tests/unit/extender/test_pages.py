"""A large list, page by page: the next one is on its way while one is taken."""

from __future__ import annotations

import asyncio
import json

import pytest
from aiohttp import web

from testbed.stack.extender.api import AnswerLost, Api
from testbed.stack.extender.connection import Connection


class Pages(Api):
    """An API of which only the pages of a list are there."""

    def __init__(self, pages):
        self.pages = pages
        self.asked = []
        self.cut_off = 0

    async def _page(self, path, more):
        assert path == "/api/v1/pods"
        self.asked.append(more)
        try:
            for _ in range(3):
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.cut_off += 1
            raise
        return self.pages[int(more or 0)]


def page(items, more=""):
    return json.dumps(
        {"metadata": {"resourceVersion": "7", "continue": more}, "items": items}
    ).encode()


def listed(pages, take):
    api = Pages(pages)

    async def scene():
        try:
            return await api.list("/api/v1/pods", lambda items: take(api, items))
        finally:
            await asyncio.sleep(0)
            assert asyncio.all_tasks() == {asyncio.current_task()}

    return api, scene


def test_the_next_page_is_asked_for_before_one_is_taken():
    seen = []
    pages = [page([{"a": 1}], "1"), page([{"a": 2}, {"a": 3}], "2"), page(None)]
    api, scene = listed(pages, lambda api, items: seen.append((items, list(api.asked))))
    assert asyncio.run(scene()) == "7"
    assert [items for items, _ in seen] == [[{"a": 1}], [{"a": 2}, {"a": 3}], []]
    assert [asked for _, asked in seen] == [["", "1"], ["", "1", "2"], ["", "1", "2"]]
    assert api.cut_off == 0


def test_a_page_that_cannot_be_taken_leaves_nothing_under_way():
    def take(_api, _items):
        raise RuntimeError("no")

    api, scene = listed([page([{}], "1"), page([])], take)
    with pytest.raises(RuntimeError, match="no"):
        asyncio.run(scene())
    assert (api.asked, api.cut_off) == (["", "1"], 1)


def test_a_page_that_is_no_json_is_an_answer_lost():
    api, scene = listed([page([{}], "1"), b"{"], lambda *_: None)
    with pytest.raises(AnswerLost):
        asyncio.run(scene())
    assert api.asked == ["", "1"]


def test_a_server_that_would_compress_is_asked_not_to():
    encodings = []

    async def answer(request):
        encodings.append(request.headers.get("Accept-Encoding"))
        response = web.Response(body=page([{"a": 1}]), content_type="application/json")
        response.enable_compression()
        return response

    async def scene():
        app = web.Application()
        app.router.add_get("/api/v1/pods", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        api, seen = Api(Connection(server=f"http://{host}:{port}", tls=None)), []
        try:
            assert await api.list("/api/v1/pods", seen.extend) == "7"
        finally:
            await api.close()
            await runner.cleanup()
        return seen

    assert asyncio.run(scene()) == [{"a": 1}]
    assert encodings == ["identity"]
