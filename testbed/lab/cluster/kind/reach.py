"""How a person's own kind and engine program reach a cluster in an engine of our own."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

from testbed.lab.cluster.kind.engine import VARIABLE
from testbed.lab.cluster.kind.record import Record


def told(record: Record) -> str:
    """Return one line for people: whose engine it is, and what to export for it.

    Programs that the machine has not are those that the testbed uses: ``kind get clusters``
    works where neither kind nor Docker is installed. Podman has no address; what reaches
    ours is a program of its name, which goes before the machine's.
    """
    words = []
    folders = []
    program = shutil.which(record.engine, path=record.environment.get("PATH", ""))
    if record.engine == "docker":
        words.append(f"DOCKER_HOST={shlex.quote(record.environment.get('DOCKER_HOST', ''))}")
        if shutil.which(record.engine) is None and program:
            folders.append(str(Path(program).parent))
    else:
        words.append(f"{VARIABLE}={record.engine}")
        folders += [str(Path(program).parent)] if program else []
    if shutil.which("kind") is None:
        folders.append(str(Path(record.kind).parent))
    if folders:
        words.append(f'PATH={":".join(map(shlex.quote, folders))}:"$PATH"')
    return (
        f"it runs in an own {record.engine.capitalize()}, which goes with it; for"
        f" {record.engine} and kind: export {' '.join(words)}"
    )
