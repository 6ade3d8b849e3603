"""The webhook's HTTPS rim: ``POST /webhook`` and ``GET /healthz``."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

from aiohttp import web

from testbed.errors import CodecError
from testbed.stack.config import DeviceConfig
from testbed.stack.webhook.handler import review

log = logging.getLogger(__name__)

#: The API server's own bound on an object is about 1.5 MiB; the review carries it once
#: on CREATE and twice on UPDATE.
MAX_BODY_BYTES = 8 << 20


def application(config: Callable[[], DeviceConfig]) -> web.Application:
    """Return the application; ``config`` gives the configuration of the moment."""

    async def webhook(request: web.Request) -> web.Response:
        body = await request.read()
        try:
            answer = answer_bytes(body, config())
        except CodecError as error:
            log.warning("bad request from %s: %s", request.remote, error.text())
            return web.Response(status=400, text=error.text() + "\n")
        return web.Response(body=answer, content_type="application/json")

    async def healthz(_request: web.Request) -> web.Response:
        return web.Response(text="ok")

    app = web.Application(client_max_size=MAX_BODY_BYTES)
    app.router.add_post("/webhook", webhook)
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", healthz)
    return app


def answer_bytes(body: bytes, config: DeviceConfig) -> bytes:
    """Return the JSON answer to a JSON review, and log one line for what it decides.

    Raises:
        CodecError: the body is not JSON, or no AdmissionReview.
    """
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise CodecError("the body is not JSON", why=str(error)) from error
    if not isinstance(document, dict):
        raise CodecError("the body is not an AdmissionReview")
    try:
        answer = review(document, config)
    except RecursionError as error:
        raise CodecError("the body is nested too deeply") from error
    _log(document["request"], answer["response"])
    return json.dumps(answer).encode()


def _log(request: dict[str, Any], response: dict[str, Any]) -> None:
    pod = f"{request.get('namespace', '')}/{request.get('name') or '(generated name)'}"
    if not response["allowed"]:
        log.info("refused %s: %s", pod, response["status"]["message"])
    elif "patch" in response:
        log.info("changed %s", pod)
    else:
        log.debug("left %s alone", pod)
