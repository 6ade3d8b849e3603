"""Binds ``pynvml`` to the NVML of one driver root.

``pynvml`` opens ``libnvidia-ml.so.1`` by name and would take whatever the loader
finds first. A library that is already loaded under that name (its SONAME) wins, so
the one wanted is loaded by its full path before.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

from testbed.errors import InputError

NVML_SONAME = "libnvidia-ml.so.1"

#: Loaded for good: NVML keeps state and locks, and unloading it drops them.
_loaded: dict[Path, ctypes.CDLL] = {}


def preload(library: Path) -> None:
    """Load an NVML library so that ``pynvml.nvmlInit`` uses it.

    Raises:
        InputError: it cannot be loaded, or another NVML is loaded already.
    """
    real = library.resolve()
    if real in _loaded:
        return
    try:
        handle = ctypes.CDLL(str(real), mode=ctypes.RTLD_GLOBAL)
        by_name = ctypes.CDLL(NVML_SONAME)
    except OSError as error:
        raise InputError(
            f"NVML cannot be loaded from {library}",
            why=str(error),
            hint="check that driverRoot is the folder of this node's driver",
        ) from error
    # dlopen returns the same handle for the same library.
    if by_name._handle != handle._handle:
        raise InputError(
            f"NVML of {library} is not the one in use",
            why=f"another {NVML_SONAME} was loaded in this process before",
            hint="one process reads one driver root",
        )
    _loaded[real] = handle
