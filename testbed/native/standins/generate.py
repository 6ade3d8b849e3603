"""Stand-ins generated from the installed torch: C source and version script of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import TestbedError
from testbed.native.standins.elf import Dynamic, read
from testbed.native.standins.families import Family, Versions, family_of, numbers

#: Not stand-ins: built from C in ``native/runtime``, and the driver.
_RUNTIME = "libcudart.so."
_DRIVER = "libcuda.so."


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One stand-in, ready to compile."""

    soname: str
    c: str
    version_script: str
    #: Number of functions.
    size: int
    #: C beside this file that belongs to it.
    written: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the installed torch needs from outside."""

    sources: tuple[Source, ...]
    #: Functions of the CUDA runtime that it imports.
    runtime: frozenset[str]
    #: Soname of the CUDA runtime.
    runtime_soname: str


def plan(site_packages: Path) -> Plan:
    """Read the torch below ``site_packages`` and describe the libraries that it lacks.

    Raises:
        TestbedError: there is no torch with CUDA, or it needs a library that is unknown here.
    """
    folder = site_packages / "torch" / "lib"
    objects = {path: read(path) for path in sorted(folder.glob("*.so*"))}
    if not objects:
        raise TestbedError("no torch to make stand-ins for", why=f"{folder} holds no library")
    metadata = "".join(p.read_text() for p in site_packages.glob("torch-*.dist-info/METADATA"))
    return make_plan(objects, Versions.of(metadata))


def make_plan(objects: Mapping[Path, Dynamic], versions: Versions) -> Plan:
    """Describe what these objects need that they do not bring; no file is read."""
    own = {path.name for path in objects}
    needed = sorted({name for o in objects.values() for name in o.needed} - own)
    runtime_soname = next((n for n in needed if n.startswith(_RUNTIME)), "")
    if not runtime_soname:
        raise TestbedError(
            "this torch cannot use an emulated card",
            why="it does not link the CUDA runtime (a build without CUDA, or another one)",
            hint="install the CUDA build of torch from PyPI",
        )
    families = {n: f for n in needed if (f := family_of(n)) is not None}
    unknown = [
        n for n in needed if n not in families and _is_vendor(n) and not n.startswith(_DRIVER)
    ]
    unknown.remove(runtime_soname)
    if unknown:
        raise TestbedError(
            "this torch needs libraries that the testbed has no stand-in for",
            why=", ".join(unknown),
            hint="use the torch version that the testbed names, or add a family in "
            "testbed/native/standins/families.py",
        )
    wanted = _wanted(objects.values(), families)
    return Plan(
        sources=tuple(_source(n, families[n], wanted[n], versions) for n in sorted(families)),
        runtime=frozenset(
            s.name for o in objects.values() for s in o.imports if s.library == runtime_soname
        ),
        runtime_soname=runtime_soname,
    )


def _is_vendor(soname: str) -> bool:
    return soname.startswith(("libcu", "libnv", "libnccl"))


def _wanted(
    objects: Iterable[Dynamic], families: Mapping[str, Family]
) -> dict[str, dict[str, str]]:
    """Soname -> function -> version; an empty version where none was linked."""
    found: dict[str, dict[str, str]] = {soname: {} for soname in families}
    objects = list(objects)
    exported = {name for o in objects for name in o.exports}
    # A longer prefix is the more exact one: cusparseLt before cusparse.
    by_prefix = sorted(families.items(), key=lambda item: -len(item[1].prefix))
    for symbol in (s for o in objects for s in o.imports):
        if symbol.library:
            if symbol.library in families:
                found[symbol.library][symbol.name] = symbol.version
        elif symbol.name not in exported and not symbol.weak:
            for soname, family in by_prefix:
                # NCCL, cuFile and cuSPARSELt are linked without versions.
                if symbol.name.startswith(family.prefix):
                    found[soname].setdefault(symbol.name, "")
                    break
    return found


def _source(
    soname: str, family: Family, functions: Mapping[str, str], versions: Versions
) -> Source:
    named = numbers(versions)
    lines = [
        "/* Generated from the installed torch's own undefined symbols. Do not edit. */",
        f'#define LIBRARY "{family.title}"',
        '#include "standin.h"',
        "",
    ]
    for name in sorted(functions):
        special = family.special.get(name)
        if special is None:
            lines.append(f"UNSUPPORTED({name}, {family.status})")
        else:
            body = special.format(**named)
            prototype = body.partition(" {")[0]
            lines += [f"API {prototype};", f"API {body}"]
    return Source(
        soname=soname,
        c="\n".join(lines) + "\n",
        version_script=_version_script(functions),
        size=len(functions),
        written=family.written,
    )


def _version_script(functions: Mapping[str, str]) -> str:
    """Nodes as the vendor's: the loader checks that each needed version exists."""
    nodes: dict[str, list[str]] = {}
    for name, version in sorted(functions.items()):
        nodes.setdefault(version, []).append(name)
    mark = "vgpu_emulation_mark"
    if set(nodes) <= {""}:
        return "{ global: " + "; ".join([*nodes.get("", []), mark]) + "; local: *; };\n"
    # Named and anonymous nodes cannot be mixed; an unversioned reference binds to
    # any version.
    first = min(v for v in nodes if v)
    nodes.setdefault(first, []).extend([*nodes.pop("", []), mark])
    parts = []
    for version, names in sorted(nodes.items()):
        rest = " local: *;" if version == first else ""
        parts.append(f"{version} {{ global: {'; '.join(names)};{rest} }};\n")
    return "".join(parts)
