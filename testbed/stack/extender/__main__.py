"""``python -m testbed.stack.extender``: serve the scheduler's filter and bind."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import signal
import socket
import sys
from pathlib import Path

from testbed.errors import ClusterError, InputError, TestbedError
from testbed.stack import names
from testbed.stack.config import DeviceConfig, load
from testbed.stack.extender.api import Api
from testbed.stack.extender.connection import from_kubeconfig, in_cluster
from testbed.stack.extender.leadership import Leadership
from testbed.stack.extender.server import (
    LABELS_FROM,
    Extender,
    observer_app,
    scheduler_app,
    serve,
)
from testbed.stack.extender.state import State
from testbed.stack.extender.verbs import HTTP2
from testbed.stack.tls import server_context

log = logging.getLogger("testbed.stack.extender")

#: kube-scheduler takes the first, where its binds share one connection.
PROTOCOLS = (HTTP2, "http/1.1")
#: Common names of the certificates that a scheduler of ours, or a stock one, shows.
SCHEDULERS = (names.SCHEDULER_NAME, "system:kube-scheduler")


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    logging.basicConfig(
        level=options.log_level.upper(), format="%(asctime)s %(levelname)s %(message)s"
    )
    # Tells of every header that it decodes.
    logging.getLogger("hpack").setLevel(logging.WARNING)
    try:
        asyncio.run(_run(options))
    except TestbedError as error:
        print(error.text(), file=sys.stderr)  # noqa: T201 - the one line a user sees
        return error.exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="testbed.stack.extender", description=__doc__)
    parser.add_argument("--cert", type=Path, required=True, help="serving certificate, PEM")
    parser.add_argument("--key", type=Path, required=True, help="its key, PEM")
    parser.add_argument("--client-ca", type=Path, required=True, help="CA of the scheduler")
    parser.add_argument(
        "--client-name",
        action="append",
        help=f"common name that may call, repeatable (default: {', '.join(SCHEDULERS)})",
    )
    parser.add_argument("--config", type=Path, help="device-config.yaml (default: defaults)")
    parser.add_argument("--kubeconfig", type=Path, help="default: the pod's service account")
    parser.add_argument(
        "--lease",
        help="NAMESPACE/NAME of the scheduler's lease: serve only while the scheduler of "
        "this host holds it (default: always)",
    )
    parser.add_argument(
        "--identity", default=socket.gethostname(), help="name of this host in the lease"
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=names.PORT_EXTENDER)
    parser.add_argument("--observe-host", default="0.0.0.0", help="plain HTTP, read only")
    parser.add_argument(
        "--observe-port", type=int, default=names.PORT_EXTENDER_OBSERVE, help="0 turns it off"
    )
    parser.add_argument("--log-level", default="info", choices=["debug", "info", "warning"])
    return parser


async def _run(options: argparse.Namespace) -> None:
    config = DeviceConfig() if options.config is None else load(options.config)
    tls = server_context(options.cert, options.key, options.client_ca, PROTOCOLS)
    connection = from_kubeconfig(options.kubeconfig) if options.kubeconfig else in_cluster()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with contextlib.AsyncExitStack() as stack:
        api = Api(connection)
        stack.push_async_callback(api.close)
        version = await _version(api, stop)
        if version is None:
            return
        state = State(config)
        extender = Extender(
            state,
            api,
            label=version >= LABELS_FROM,
            leadership=Leadership(identity=options.identity) if options.lease else None,
            lease=_lease(options.lease),
        )
        log.info("API server %s is version %d.%d", connection.server, *version)
        app = scheduler_app(
            state,
            extender.binder,
            extender.report,
            options.client_name or SCHEDULERS,
            extender.evict,
        )
        runner = await serve(app, options.host, options.port, tls)
        stack.push_async_callback(runner.cleanup)
        if options.observe_port:
            certificates = {"serving": options.cert, "client-ca": options.client_ca}
            observer = await serve(
                observer_app(state, certificates), options.observe_host, options.observe_port, None
            )
            stack.push_async_callback(observer.cleanup)
        log.info("serving on %s:%d", options.host, options.port)
        work = asyncio.create_task(extender.run())
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work  # a failure of the work is a failure of the program


def _lease(text: str | None) -> tuple[str, str]:
    namespace, slash, name = (text or "").partition("/")
    if text and not (namespace and slash and name):
        raise InputError(f"--lease {text!r} is no lease", hint="write NAMESPACE/NAME")
    return namespace, name


async def _version(api: Api, stop: asyncio.Event) -> tuple[int, int] | None:
    """Return the server's version as soon as it answers; None if told to stop."""
    pause = 0.2
    while not stop.is_set():
        try:
            return await api.version()
        except (ClusterError, KeyError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            log.warning("waiting for the API server: %s", error)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), pause)
        pause = min(2 * pause, 5.0)
    return None


if __name__ == "__main__":
    sys.exit(main())
