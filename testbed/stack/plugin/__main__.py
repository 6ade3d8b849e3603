"""``python -m testbed.stack.plugin``: the device plugin of one node."""

from __future__ import annotations

import sys
from pathlib import Path

from testbed.native import artifacts
from testbed.stack import names, program
from testbed.stack.plugin.server import Options, serve


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and serve."""
    parser = program.parser("testbed.stack.plugin", __doc__, port=names.PORT_PLUGIN_HEALTH)
    parser.add_argument("--config", type=Path, help="device configuration (YAML), watched")
    parser.add_argument("--library", type=Path, help="libvgpu.so; default: the one built with us")
    parser.add_argument("--cdi-root", type=Path, default=Path(names.CDI_ROOT))
    parser.add_argument("--plugin-root", type=Path, default=Path(names.DEVICE_PLUGIN_ROOT))
    parser.add_argument("--pod-resources", type=Path, default=Path(names.POD_RESOURCES_SOCKET))
    given = program.parse(parser, arguments)

    return program.run(
        lambda stop: serve(
            Options(
                node=given.node_name,
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
