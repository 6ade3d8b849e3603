"""``python -m testbed.stack.webhook``: serve admission over HTTPS."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from aiohttp import web

from testbed.errors import TestbedError
from testbed.stack import names
from testbed.stack.config import DeviceConfig, load
from testbed.stack.reload import Reloading
from testbed.stack.tls import server_context
from testbed.stack.webhook.server import application


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="testbed.stack.webhook", description=__doc__)
    parser.add_argument("--cert", type=Path, required=True, help="serving certificate, PEM")
    parser.add_argument("--key", type=Path, required=True, help="its key, PEM")
    parser.add_argument("--config", type=Path, help="device-config.yaml (default: defaults)")
    parser.add_argument("--host", default="0.0.0.0", help="address to listen on")
    parser.add_argument("--port", type=int, default=names.PORT_WEBHOOK)
    parser.add_argument("--log-level", default="info", choices=["debug", "info", "warning"])
    options = parser.parse_args(arguments)
    logging.basicConfig(
        level=options.log_level.upper(), format="%(asctime)s %(levelname)s %(message)s"
    )
    try:
        context = server_context(options.cert, options.key)
        if options.config is None:
            default = DeviceConfig()
            app = application(lambda: default)
        else:
            app = application(Reloading((options.config,), lambda: load(options.config)).get)
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


if __name__ == "__main__":
    sys.exit(main())
