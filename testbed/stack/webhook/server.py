"""The webhook's HTTPS rim: ``POST /webhook``, ``GET /healthz`` and ``/metrics``.

``POST /webhook/own-environment`` is the same for namespaces whose administrator lets
pods set the library's variables: the registration sends them there by their label.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from aiohttp import web

from testbed.errors import CodecError
from testbed.stack.config import DeviceConfig
from testbed.stack.devices.vendor import Vendor
from testbed.stack.placement.quota import UNBOUNDED, Amount
from testbed.stack.tls import expiry_lines
from testbed.stack.webhook.handler import Context, asking, review

log = logging.getLogger(__name__)

PATH = "/webhook"
PATH_OWN_ENVIRONMENT = "/webhook/own-environment"

#: The API server's own bound on an object is about 1.5 MiB; the review carries it once
#: on CREATE and twice on UPDATE.
MAX_BODY_BYTES = 8 << 20


def application(
    config: Callable[[], DeviceConfig],
    *,
    writers: frozenset[str] = frozenset(),
    room: Callable[[str, Vendor], Amount] | None = None,
    certificates: Mapping[str, Path] | None = None,
) -> web.Application:
    """Return the application.

    Args:
        config: Gives the configuration of the moment.
        writers: User names that may write the stack's own annotations.
        room: Gives what a namespace's quota leaves of a vendor's cards; may block.
        certificates: ``/metrics`` tells when those end, by what they are for.
    """

    async def answer(request: web.Request, *, own_environment: bool) -> web.Response:
        body = await request.read()
        try:
            document = decoded(body)
            now = config()
            whose = asking(document, now) if room is not None else None
            context = Context(
                config=now,
                writers=writers | frozenset(now.trustedWriters),
                own_environment=own_environment,
                room=await asyncio.to_thread(room, *whose) if whose and room else UNBOUNDED,
            )
            found = answer_bytes(document, context)
        except CodecError as error:
            log.warning("bad request from %s: %s", request.remote, error.text())
            return web.Response(status=400, text=error.text() + "\n")
        return web.Response(body=found, content_type="application/json")

    async def webhook(request: web.Request) -> web.Response:
        return await answer(request, own_environment=False)

    async def own(request: web.Request) -> web.Response:
        return await answer(request, own_environment=True)

    async def healthz(_request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def metrics(_request: web.Request) -> web.Response:
        text = "\n".join(expiry_lines("webhook", certificates or {})) + "\n"
        # Prometheus names the version of its text form, which aiohttp's arguments cannot.
        headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=text.encode(), headers=headers)

    app = web.Application(client_max_size=MAX_BODY_BYTES)
    app.router.add_post(PATH, webhook)
    app.router.add_post(PATH_OWN_ENVIRONMENT, own)
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", healthz)
    app.router.add_get("/metrics", metrics)
    return app


def decoded(body: bytes) -> dict[str, Any]:
    """Return the document of a body.

    Raises:
        CodecError: it is not JSON, or not an object.
    """
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise CodecError("the body is not JSON", why=str(error)) from error
    if not isinstance(document, dict):
        raise CodecError("the body is not an AdmissionReview")
    return document


def answer_bytes(document: dict[str, Any], context: Context) -> bytes:
    """Return the JSON answer to a review, and log one line for what it decides.

    Raises:
        CodecError: it is no AdmissionReview.
    """
    try:
        answer = review(document, context)
        body = json.dumps(answer).encode()
    except RecursionError as error:
        raise CodecError("the body is nested too deeply") from error
    _log(document["request"], answer["response"])
    return body


def _log(request: dict[str, Any], response: dict[str, Any]) -> None:
    name = f"{request.get('namespace') or ''}/{request.get('name') or '(generated name)'}"
    if not response["allowed"]:
        log.info("refused %s: %s", name, response["status"]["message"])
    elif "patch" in response:
        log.info("changed %s", name)
    else:
        log.debug("left %s alone", name)
