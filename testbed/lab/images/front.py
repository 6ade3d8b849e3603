"""The configuration of ``vgpu-oci-front`` (``testbed/native/ocifront/config.h``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from testbed.errors import InputError
from testbed.lab.images import adaptations as _adaptations
from testbed.lab.images.model import Image

#: Where the front reads it from, unless the environment variable names another file or
#: there is one beside the program, called as it is and ended with ``.conf``.
CONFIG_FILE = "/etc/vgpu-testbed/front.conf"
CONFIG_VARIABLE = "VGPU_OCI_FRONT_CONFIG"


def configuration(
    images: Iterable[Image],
    *,
    runtime: str,
    arguments: Iterable[str] = ("--rootless=true",),
    drop_cgroups: bool = True,
    drop_oom_score: bool = True,
    relocate: Callable[[Path], str] = str,
) -> str:
    """Return the text of the front's configuration file.

    Args:
        images: Whose binds the front adds.
        runtime: The real runtime's absolute path, as the node sees it.
        arguments: What the runtime is called with before containerd's own arguments.
        drop_cgroups: Whether containers run without cgroups (none are delegated to us).
        drop_oom_score: Whether OOM scores are left out; else they are raised to what is allowed.
        relocate: Maps the source of a bind to where the node sees it.

    Raises:
        InputError: a path that the file format cannot hold.
    """
    lines = [f"runtime {_word(runtime)}"]
    lines += [f"argument {_word(argument)}" for argument in arguments]
    lines.append(f"cgroups {'drop' if drop_cgroups else 'keep'}")
    lines.append(f"oom-score {'drop' if drop_oom_score else 'clamp'}")
    for image in images:
        if image.binds:
            lines.append(f"image {_word(image.reference)}")
        for bind in image.binds:
            lines.append(f"bind {_word(relocate(bind.source))} {_word(bind.destination)}")
    return "\n".join(lines) + "\n"


def adaptations() -> list[str]:
    """Return a line for each thing that the front takes out of containers on this host."""
    return _adaptations.of(_adaptations.look())


def _word(text: str) -> str:
    if not text or text.split() != [text] or text.startswith("#"):
        raise InputError(
            f"cannot lend {text!r} to containers",
            why="the path holds a blank",
            hint="set XDG_CACHE_HOME to a folder without blanks in its path",
        )
    return text
