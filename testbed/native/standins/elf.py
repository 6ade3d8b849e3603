"""What an ELF shared object asks of others and offers: the dynamic symbol table.

Read with ``mmap``, so that half a gigabyte of code costs the pages of three tables.
Only what x86-64 Linux uses: 64 bit, little endian.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import TestbedError

_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_VERNEED = struct.Struct("<HHIII")
_VERNAUX = struct.Struct("<IHHII")
_DYNAMIC = struct.Struct("<qQ")

_SHT_DYNAMIC, _SHT_DYNSYM, _SHT_VERNEED, _SHT_VERSYM = 6, 11, 0x6FFFFFFE, 0x6FFFFFFF
_DT_NEEDED = 1
_STB_WEAK = 2
_SHN_UNDEF = 0


@dataclass(frozen=True, slots=True)
class Symbol:
    """A name that an object imports, with the version and library it was linked against."""

    name: str
    version: str = ""
    #: Soname of the library that the version belongs to; empty without a version.
    library: str = ""
    weak: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Dynamic:
    """The dynamic part of an object."""

    needed: tuple[str, ...]
    imports: tuple[Symbol, ...]
    exports: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Section:
    kind: int
    offset: int
    size: int
    link: int
    info: int


def read(path: Path) -> Dynamic:
    """Read a shared object's dynamic symbols.

    Raises:
        TestbedError: the file is not an x86-64 ELF shared object.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _parse(data)
    except (OSError, ValueError, struct.error, IndexError) as error:
        raise TestbedError(
            f"cannot read the symbols of {path.name}",
            why=str(error) or "damaged file",
            hint=f"remove the folder that holds {path} and let it be made anew",
        ) from error


def _parse(data: mmap.mmap) -> Dynamic:
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit little-endian ELF file")
    sections = _sections(data)
    versions = _versions(data, sections)
    imports: list[Symbol] = []
    exports: set[str] = set()
    symbols = next((s for s in sections if s.kind == _SHT_DYNSYM), None)
    versym = next((s for s in sections if s.kind == _SHT_VERSYM), None)
    if symbols is None:
        raise ValueError("no dynamic symbols")
    names = sections[symbols.link]
    for i in range(1, symbols.size // _SYMBOL.size):
        at = symbols.offset + i * _SYMBOL.size
        name_at, info, _, section, _, _ = _SYMBOL.unpack_from(data, at)
        name = _text(data, names, name_at)
        if not name:
            continue
        if section != _SHN_UNDEF:
            exports.add(name)
            continue
        index = 0
        if versym is not None:
            # The top bit marks hidden versions.
            index = struct.unpack_from("<H", data, versym.offset + 2 * i)[0] & 0x7FFF
        version, library = versions.get(index, ("", ""))
        imports.append(Symbol(name, version, library, weak=info >> 4 == _STB_WEAK))
    return Dynamic(
        needed=_needed(data, sections), imports=tuple(imports), exports=frozenset(exports)
    )


def _sections(data: mmap.mmap) -> list[_Section]:
    offset = struct.unpack_from("<Q", data, 0x28)[0]
    size, count = struct.unpack_from("<HH", data, 0x3A)
    found = []
    for i in range(count):
        _, kind, _, _, at, length, link, info, _, _ = _SECTION.unpack_from(data, offset + i * size)
        found.append(_Section(kind, at, length, link, info))
    return found


def _versions(data: mmap.mmap, sections: list[_Section]) -> dict[int, tuple[str, str]]:
    """Version index -> (version, library), from the list of needed versions."""
    found: dict[int, tuple[str, str]] = {}
    section = next((s for s in sections if s.kind == _SHT_VERNEED), None)
    if section is None:
        return found
    names = sections[section.link]
    at = section.offset
    for _ in range(section.info):
        _, count, file_at, aux, step = _VERNEED.unpack_from(data, at)
        library = _text(data, names, file_at)
        aux_at = at + aux
        for _ in range(count):
            _, _, index, name_at, aux_step = _VERNAUX.unpack_from(data, aux_at)
            found[index & 0x7FFF] = (_text(data, names, name_at), library)
            if not aux_step:
                break
            aux_at += aux_step
        if not step:  # the last one, whatever the count says
            break
        at += step
    return found


def _needed(data: mmap.mmap, sections: list[_Section]) -> tuple[str, ...]:
    section = next((s for s in sections if s.kind == _SHT_DYNAMIC), None)
    if section is None:
        return ()
    names = sections[section.link]
    found = []
    for i in range(section.size // _DYNAMIC.size):
        tag, value = _DYNAMIC.unpack_from(data, section.offset + i * _DYNAMIC.size)
        if tag == _DT_NEEDED:
            found.append(_text(data, names, value))
    return tuple(found)


def _text(data: mmap.mmap, table: _Section, offset: int) -> str:
    start = table.offset + offset
    end = data.find(b"\0", start)
    if end < 0:
        raise ValueError("a name without an end")
    return data[start:end].decode()
