"""Keep what NVIDIA's tools and the engines say here, as `tests/data/toolkit` holds it.

``PYTHONPATH=. python3 tests/gpu/tools.py FILE.tar.gz`` from the repository's root; the
standard library is enough. Nothing is changed. The archive holds lists of cards with their
uuids, versions, settings of toolkit and engine; host names, serial numbers and environment
are left out. A tool that is not there leaves a file that says so.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path

from testbed.lab.cluster.kind import gpu_cards
from testbed.lab.cluster.kind.gpu_host import CONFIG_FILE, Answer, ask

COMMANDS = {
    "smi-list.txt": ["nvidia-smi", "-L"],
    "smi-query.txt": [
        *("nvidia-smi", f"--query-gpu={gpu_cards.QUERY}"),
        "--format=csv,noheader,nounits",
    ],
    "version.txt": ["nvidia-ctk", "--version"],
    "list.txt": ["nvidia-ctk", "cdi", "list"],
    "specification.json": [
        *("nvidia-ctk", "cdi", "generate", "--format", "json"),
        *("--device-name-strategy", "uuid"),
    ],
    "docker.json": ["docker", "info", "--format", "{{json .}}"],
    "podman.json": ["podman", "info", "--format", "json"],
}
FILES = {
    "config.toml": CONFIG_FILE,
    "params.txt": Path("/proc/driver/nvidia/params"),
    "mig-minors.txt": Path("/proc/driver/nvidia-caps/mig-minors"),
}
#: What of an engine's own description stays.
KEPT = {
    "docker.json": (
        *("ServerVersion", "CgroupDriver", "CgroupVersion", "DefaultRuntime", "Runtimes"),
        *("SecurityOptions", "CDISpecDirs", "DiscoveredDevices", "DockerRootDir", "ServerErrors"),
    ),
    "podman.json": ("host", "store", "version"),
}
KEPT_BELOW = {
    "host": ("cgroupManager", "cgroupVersion", "ociRuntime", "networkBackend", "security"),
    "store": ("graphRoot", "graphDriverName"),
}


def kept(name: str, text: str) -> str:
    """Return a tool's output without what describes the machine rather than the tool."""
    if name not in KEPT:
        return text
    try:
        document = json.loads(text)
    except ValueError:
        return ""  # half a document: what it holds is not known
    found = {key: document[key] for key in KEPT[name] if key in document}
    for key, words in KEPT_BELOW.items():
        if isinstance(found.get(key), Mapping):
            found[key] = {word: found[key][word] for word in words if word in found[key]}
    return json.dumps(found, indent=1) + "\n"


def shown(name: str, answer: Answer) -> str:
    if answer.code is None:
        return f"not there: {answer.err}\n"
    text = kept(name, answer.out)
    return text if answer.code == 0 else f"{text}{answer.err}exit {answer.code}\n"


def gathered() -> dict[str, str]:
    found = {name: shown(name, ask(argv)) for name, argv in COMMANDS.items()}
    for name, path in FILES.items():
        found[name] = read(path)
    for number, path in enumerate(sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))):
        found[f"information-{number}.txt"] = read(path)
    return found


def read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError as error:
        return f"not there: {error.strerror}\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path, help="the archive to write (.tar.gz)")
    given = parser.parse_args()
    with tarfile.open(given.file, "w:gz") as archive:
        for name, text in gathered().items():
            data = text.encode()
            member = tarfile.TarInfo(f"toolkit/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return 0


if __name__ == "__main__":
    sys.exit(main())
