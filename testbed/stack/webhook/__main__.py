"""``python -m testbed.stack.webhook``: serve admission over HTTPS."""

from __future__ import annotations

import argparse
import logging
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from aiohttp import web

from testbed.errors import TestbedError
from testbed.stack import names
from testbed.stack.config import DeviceConfig, load
from testbed.stack.devices.vendor import Vendor
from testbed.stack.kubeapi import KubeApi
from testbed.stack.placement.quota import Amount
from testbed.stack.reload import Reloading
from testbed.stack.tls import server_context
from testbed.stack.webhook.follow import NamespaceQuotas
from testbed.stack.webhook.server import application


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="testbed.stack.webhook", description=__doc__)
    parser.add_argument("--cert", type=Path, required=True, help="serving certificate, PEM")
    parser.add_argument("--key", type=Path, required=True, help="its key, PEM")
    parser.add_argument("--config", type=Path, help="device-config.yaml (default: defaults)")
    parser.add_argument("--host", default="0.0.0.0", help="address to listen on")
    parser.add_argument("--port", type=int, default=names.PORT_WEBHOOK)
    parser.add_argument(
        "--writer",
        action="append",
        default=[],
        help="user that may write the stack's own annotations (again for each)",
    )
    parser.add_argument(
        "--quota",
        choices=["off", "in-cluster", "kubeconfig"],
        default="off",
        help="tell namespaces' quotas early, reading them as the pod's account or --kubeconfig",
    )
    parser.add_argument("--kubeconfig", type=Path, help="for --quota=kubeconfig")
    parser.add_argument("--log-level", default="info", choices=["debug", "info", "warning"])
    options = parser.parse_args(arguments)
    logging.basicConfig(
        level=options.log_level.upper(), format="%(asctime)s %(levelname)s %(message)s"
    )
    try:
        context = server_context(options.cert, options.key)
        config = _config(options.config)
        app = application(
            config,
            writers=frozenset(options.writer),
            room=_room(options, config),
            certificates={"serving": options.cert},
        )
        web.run_app(
            app,
            host=options.host,
            port=options.port,
            ssl_context=context,
            access_log=None,
            print=None,
            shutdown_timeout=2,
        )
    except TestbedError as error:
        print(error.text(), file=sys.stderr)  # noqa: T201 - the one line a user sees
        return error.exit_code
    except OSError as error:
        print(f"cannot listen on {options.host}:{options.port}: {error}", file=sys.stderr)  # noqa: T201
        return 2
    return 0


def _config(path: Path | None) -> Callable[[], DeviceConfig]:
    if path is None:
        default = DeviceConfig()
        return lambda: default
    return Reloading((path,), lambda: load(path)).get


def _room(
    options: argparse.Namespace, config: Callable[[], DeviceConfig]
) -> Callable[[str, Vendor], Amount] | None:
    """Follow the cluster's quotas in a thread that ends with the program."""
    if options.quota == "off":
        return None
    kubeconfig = options.kubeconfig if options.quota == "kubeconfig" else None
    quotas = NamespaceQuotas(KubeApi.connect(kubeconfig), config)
    threading.Thread(target=quotas.follow, args=(threading.Event(),), daemon=True).start()
    return quotas.room


if __name__ == "__main__":
    sys.exit(main())
