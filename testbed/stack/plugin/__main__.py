"""``python -m testbed.stack.plugin``: the device plugin of one node."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from testbed.native import artifacts
from testbed.stack import names, program
from testbed.stack.plugin.server import Options, serve


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and serve."""
    parser = argparse.ArgumentParser(prog="python -m testbed.stack.plugin", description=__doc__)
    parser.add_argument("--node-name", help="this node; default: the environment's NODE_NAME")
    parser.add_argument("--driver-root", help="folder of the node's driver; default: detected")
    parser.add_argument("--hook-path", type=Path, default=Path(names.HOOK_PATH))
    parser.add_argument("--config", type=Path, help="device configuration (YAML), watched")
    parser.add_argument("--library", type=Path, help="libvgpu.so; default: the one built with us")
    parser.add_argument("--kubeconfig", type=Path, help="default: the pod's service account")
    parser.add_argument("--cdi-root", type=Path, default=Path(names.CDI_ROOT))
    parser.add_argument("--plugin-root", type=Path, default=Path(names.DEVICE_PLUGIN_ROOT))
    parser.add_argument("--pod-resources", type=Path, default=Path(names.POD_RESOURCES_SOCKET))
    parser.add_argument("--port", type=int, default=names.PORT_PLUGIN_HEALTH)
    given = parser.parse_args(arguments)
    node = program.node_name(given.node_name)
    if not node:
        parser.error("give --node-name or set NODE_NAME")

    return program.run(
        lambda stop: serve(
            Options(
                node=node,
                driver_root=given.driver_root,
                hook_path=given.hook_path,
                library=given.library or artifacts.library("libvgpu.so"),
                config=given.config,
                kubeconfig=given.kubeconfig,
                cdi_root=given.cdi_root,
                plugin_root=given.plugin_root,
                pod_resources=given.pod_resources,
                port=given.port,
            ),
            stop,
        )
    )


if __name__ == "__main__":
    sys.exit(main())
