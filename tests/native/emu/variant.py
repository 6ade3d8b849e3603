"""The emulated libcuda built apart: with a defect as a control, or for a sanitizer."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

NATIVE = Path(__file__).resolve().parents[3] / "testbed/native"
_FLAGS = ("-std=c11", "-fPIC", "-fvisibility=hidden", "-pthread", "-g")


def build(
    folder: Path,
    *,
    replace: Mapping[str, Sequence[tuple[str, str]]] | None = None,
    flags: Sequence[str] = ("-O1",),
) -> Path:
    """Compile a copy of the driver, return the folder with its ``libcuda.so.1``.

    Args:
        folder: Empty; gets sources and library.
        replace: For each file name, texts that are in it once, and what takes their place.
        flags: Added to the compiler's.
    """
    sources = folder / "emu"
    shutil.copytree(NATIVE / "emu", sources)
    for name, pairs in (replace or {}).items():
        text = (sources / name).read_text()
        for old, new in pairs:
            assert text.count(old) == 1, f"{name} has changed: {old!r}"
            text = text.replace(old, new)
        (sources / name).write_text(text)
    files = sorted(str(path) for path in sources.glob("*.c") if not path.name.startswith("nvml"))
    driver = folder / "driver"
    driver.mkdir()
    subprocess.run(
        [
            *("cc", *_FLAGS, *flags, f"-I{NATIVE / 'include'}", *files, "-shared"),
            *("-Wl,-Bsymbolic", "-Wl,-z,nodelete", "-Wl,-soname,libcuda.so.1"),
            *("-ldl", "-o", str(driver / "libcuda.so.1")),
        ],
        check=True,
        timeout=300,
    )
    return driver
