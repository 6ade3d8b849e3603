"""``python -m testbed.stack.certificates``: renew a deployment's certificates in time."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from testbed.errors import TestbedError
from testbed.stack import names
from testbed.stack.certificates import sets
from testbed.stack.certificates.server import Renewal
from testbed.stack.kubeapi import KubeApi


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m testbed.stack.certificates", description=__doc__
    )
    parser.add_argument("--namespace", default=names.NAMESPACE, help="of the deployment")
    parser.add_argument("--registration", required=True, help="its MutatingWebhookConfiguration")
    parser.add_argument("--scheduler", required=True, help="its scheduler's Deployment")
    parser.add_argument(
        "--host",
        action="append",
        default=[],
        help="name or address by which the webhook is called beside its Service's (repeatable)",
    )
    parser.add_argument("--kubeconfig", type=Path, help="default: the pod's service account")
    parser.add_argument(
        "--days", type=int, default=sets.RENEW_DAYS, help="renew what ends sooner (%(default)s)"
    )
    parser.add_argument("--renew", action="store_true", help="renew in any case")
    options = parser.parse_args(arguments)
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s"
    )
    try:
        renewal = Renewal(
            KubeApi.connect(options.kubeconfig),
            namespace=options.namespace,
            registration=options.registration,
            scheduler=options.scheduler,
            hosts=options.host,
        )
        renewal.run(renew=options.renew, days=options.days)
    except TestbedError as error:
        print(error.text(), file=sys.stderr)  # noqa: T201 - the one line a user sees
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
