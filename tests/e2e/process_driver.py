"""One command on a process cluster, as root or as an ordinary user; see test_process_cluster.

    process_driver.py OPTIONS.json up|down|status

Everything is imported first and rights are dropped then: an ordinary user need not be
able to read the interpreter, the packages or this tree, which lie in root's home in CI.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import tempfile
from pathlib import Path

from testbed.errors import TestbedError
from testbed.lab.cluster.process import Parts, ProcessCluster, Programs, launch, layout, pki
from testbed.lab.cluster.protocol import CardSpec, ClusterSpec
from testbed.lab.images.model import Bind, Image
from testbed.lab.progress import ConsoleProgress


class SmallParts(Parts):
    """The product's programs with two small images and a card that is a file."""

    def __init__(self, options):
        self.options = options

    def programs(self, progress):
        return Programs(**{key: Path(path) for key, path in self.options["programs"].items()})

    def images(self, progress):
        return tuple(
            Image(
                reference=each["reference"],
                archive=Path(each["archive"]),
                binds=tuple(Bind(source=Path(a), destination=b) for a, b in each["binds"]),
            )
            for each in self.options["images"]
        )

    def cards(self, folder, specs, nodes):
        (folder / "EMULATION").write_text("of a test\n")
        return tuple(f"GPU-{folder.parent.name}-{i}" for i in range(sum(s.count for s in specs)))


def warm_up():
    """Do once what imports at its first use: afterwards it could not be read."""
    "127.0.0.1".encode("idna")
    with tempfile.TemporaryDirectory() as scratch:
        folders = layout.Folders(Path(scratch))
        pki.write_all(folders, "warm", layout.nodes("warm", 1), 6443)


def main() -> int:
    options = json.loads(Path(sys.argv[1]).read_text())
    uid = options["uid"]
    if uid:
        warm_up()
        launch.PROGRAMS = Path(options["inside"])
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        os.chdir("/")
    cluster = ProcessCluster(options["name"], parts=SmallParts(options))
    progress = ConsoleProgress()
    try:
        if sys.argv[2] == "up":
            cards = (CardSpec(profile=options["card"]),)
            spec = ClusterSpec(nodes=options["nodes"], port=options["port"], cards=cards)
            cluster.up(spec, progress)
        elif sys.argv[2] == "down":
            cluster.down(progress)
        print(json.dumps(dataclasses.asdict(cluster.status()), default=str))
    except TestbedError as error:
        print(json.dumps({"error": type(error).__name__, "text": str(error)}))
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
