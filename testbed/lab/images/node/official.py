"""kind's own node image, for engines that can pull it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence

#: What kind v0.33.0 itself makes nodes from: the constant ``Image`` in
#: ``pkg/apis/config/defaults/image.go`` of its module.
KUBERNETES = "v1.37.0"
DIGEST = "sha256:a1ed56cfb0e7b93589bdf97c8cd566405a265939e3620fc4f5de89adff580ae5"
REFERENCE = f"kindest/node:{KUBERNETES}@{DIGEST}"
#: For questions: with the registry, which podman wants, and without the tag, which some
#: engines refuse beside a digest.
EXACT = f"docker.io/kindest/node@{DIGEST}"

_LOCAL_S = 3.0


def present(engine: Sequence[str], environ: Mapping[str, str] | None = None) -> bool:
    """Tell whether an engine has the image already.

    Args:
        engine: The engine's program and its global options.
        environ: The whole environment of the program; the own one if not given.
    """
    return _holds([*engine, "image", "inspect", EXACT], _LOCAL_S, environ)


def pullable(
    engine: Sequence[str], timeout_s: float = 3.0, environ: Mapping[str, str] | None = None
) -> bool:
    """Ask the registry, through the engine's program, whether it has the image.

    No layer is pulled. A registry that does not answer in time counts as one that cannot
    be reached, and so does a program that cannot ask.

    Args:
        engine: The engine's program and its global options.
        timeout_s: Seconds.
        environ: The whole environment of the program; the own one if not given.
    """
    return _holds([*engine, "manifest", "inspect", EXACT], timeout_s, environ)


def _holds(argv: Sequence[str], timeout_s: float, environ: Mapping[str, str] | None) -> bool:
    try:
        done = subprocess.run(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=timeout_s,
            env=dict(os.environ if environ is None else environ),
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
