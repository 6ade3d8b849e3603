"""Look at the machine's cards, driver and container toolkit; change nothing."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import InputError
from testbed.lab.cluster.kind import gpu_cards, toolkit
from testbed.lab.cluster.kind.gpu import GpuHost
from testbed.lab.cluster.kind.toolkit import Toolkit

CONFIG_FILE = Path("/etc/nvidia-container-runtime/config.toml")
#: Programs of the toolkit that nodes get, at these paths whatever the machine's are: the
#: hook's path is what `nvidia-ctk` writes where it does not find the hook elsewhere.
PROGRAMS = {"nvidia-ctk": "/usr/bin/nvidia-ctk", "nvidia-cdi-hook": "/usr/bin/nvidia-cdi-hook"}
_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a program said; ``code`` is None where there is none, or it did not end."""

    code: int | None
    out: str
    err: str = ""

    @property
    def said(self) -> str:
        return (self.err.strip() or self.out.strip())[:2000]


def ask(argv: Sequence[str], *, timeout_s: float = _SECONDS) -> Answer:
    """Run a program to its end and return what it said, whatever that is."""
    try:
        done = subprocess.run(
            list(argv),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
            env={**os.environ, "LC_ALL": "C"},
        )
    except OSError as error:
        return Answer(code=None, out="", err=f"{argv[0]}: {error.strerror}")
    except subprocess.TimeoutExpired:
        return Answer(code=None, out="", err=f"{argv[0]} gave no answer in {timeout_s:g} s")
    return Answer(code=done.returncode, out=done.stdout, err=done.stderr)


def cards() -> tuple[gpu_cards.RealCard, ...]:
    """Return the machine's cards.

    Raises:
        InputError: there is no driver, or it lists none.
    """
    listed = ask(["nvidia-smi", "-L"])
    if listed.code is None:
        raise InputError(
            "this machine has no NVIDIA driver that can be asked",
            why=listed.said,
            hint="install NVIDIA's driver (nvidia-smi comes with it)",
        )
    found = gpu_cards.parse_list(listed.out + listed.err)
    return gpu_cards.joined(found, _queried(), _minors())


def driver() -> str:
    """Return the driver's version; empty where none answers."""
    queried = _queried()
    return queried[0].driver if queried else ""


def _queried() -> tuple[gpu_cards.Queried, ...]:
    query = f"--query-gpu={gpu_cards.QUERY}"
    return gpu_cards.parse_query(ask(["nvidia-smi", query, "--format=csv,noheader,nounits"]).out)


def _minors() -> list[tuple[str, int]]:
    found = []
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        with contextlib.suppress(OSError):
            if pair := gpu_cards.parse_information(path.read_text(errors="replace")):
                found.append(pair)
    return found


def find_toolkit() -> Toolkit | None:
    """Return the container toolkit, None where there is none.

    Raises:
        InputError: its version or its configuration cannot be read.
    """
    programs = {where: at for name, at in PROGRAMS.items() if (where := shutil.which(name))}
    if not any(at == PROGRAMS["nvidia-ctk"] for at in programs.values()):
        return None
    said = ask(["nvidia-ctk", "--version"])
    version = toolkit.parse_version(said.out + said.err)
    if version is None:
        raise InputError("nvidia-ctk tells no version", why=said.said, hint="nvidia-ctk --version")
    return Toolkit(
        version=version,
        config=toolkit.parse_config(config_text()),
        listed=toolkit.parse_cdi_list(ask(["nvidia-ctk", "cdi", "list"]).out),
        # Links (NixOS, alternatives) lead to where the engine finds the file.
        programs={str(Path(where).resolve()): at for where, at in programs.items()},
    )


def config_text() -> str:
    """Return the toolkit's configuration; empty where there is none: its defaults.

    Raises:
        InputError: it may not be read.
    """
    # Not where XDG_CONFIG_HOME leads: the engine starts the runtime without this environment.
    path = CONFIG_FILE
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise InputError(
            f"{path} cannot be read", why=str(error.strerror), hint=f"sudo chmod a+r {path}"
        ) from error


def driver_parts(kit: Toolkit | None) -> toolkit.DriverParts | None:
    """Return the driver's files as the toolkit finds them, None where it cannot tell.

    Raises:
        InputError: it should tell and does not.
    """
    if kit is None or kit.version < toolkit.CDI_GENERATE:
        return None
    command = ["nvidia-ctk", "cdi", "generate", "--format", "json"]
    done = ask([*command, "--device-name-strategy", "uuid"])
    if done.code != 0:
        raise InputError(
            "nvidia-ctk does not describe the driver's files",
            why=done.said[-600:],
            hint=" ".join(command),
        )
    return toolkit.parse_specification(done.out)


def look() -> GpuHost:
    """Return what ``gpu.plan`` needs to know of the machine.

    Raises:
        InputError: there is no card, or a tool's answer cannot be read.
    """
    found = cards()
    kit = find_toolkit()
    return GpuHost(cards=found, driver=driver(), toolkit=kit, parts=driver_parts(kit))
