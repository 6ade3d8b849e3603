"""The CronJob that renews the certificates of a cluster that nobody looks after."""

from __future__ import annotations

from testbed.lab.deploy.common import (
    CERTIFICATES,
    NAME,
    SCHEDULER,
    WEBHOOK,
    Object,
    cluster_name,
    locked_down,
    meta,
    program,
    small,
)
from testbed.lab.deploy.values import StackValues

#: Once a day, thirty tries before a set ends; at a minute of its own.
SCHEDULE = "17 3 * * *"


def renewal(values: StackValues) -> Object:
    """Return the CronJob.

    Its pods carry no label of the deployment's servers: one that fails must not pass for
    a part of the stack that does not start.
    """
    return {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": meta(CERTIFICATES, values, app=CERTIFICATES),
        "spec": {
            "schedule": SCHEDULE,
            "concurrencyPolicy": "Forbid",
            # A controller that was away looks no further back than this.
            "startingDeadlineSeconds": 3600,
            "successfulJobsHistoryLimit": 1,
            "failedJobsHistoryLimit": 1,
            "jobTemplate": {
                "spec": {
                    "backoffLimit": 4,
                    "activeDeadlineSeconds": 600,
                    "template": {
                        "metadata": {"labels": {NAME: CERTIFICATES}},
                        "spec": {
                            "serviceAccountName": CERTIFICATES,
                            "restartPolicy": "Never",
                            "containers": [
                                {
                                    "name": "certificates",
                                    "image": values.images.base,
                                    "imagePullPolicy": "IfNotPresent",
                                    "command": program(
                                        "certificates",
                                        f"--namespace={values.namespace}",
                                        f"--registration={cluster_name(values, WEBHOOK)}",
                                        f"--scheduler={SCHEDULER}",
                                        *(f"--host={host}" for host in values.webhook_hosts),
                                    ),
                                    "resources": small(),
                                    "securityContext": locked_down(),
                                }
                            ],
                        },
                    },
                }
            },
        },
    }
