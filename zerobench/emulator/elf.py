"""Reads a shared library's requirements: its entries DT_NEEDED and its undefined symbols with their versions.

Parsed from the file itself (ELF64, little endian: Linux on x86-64), so that no compiler tool is needed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from zerobench.common.errors import UserError

_DYNAMIC, _DYNSYM, _VERSYM, _VERNEED = 6, 11, 0x6FFFFFFF, 0x6FFFFFFE
_NEEDED = 1


@dataclass(frozen=True)
class LibraryNeeds:
    """Requirements of one library."""

    libraries: tuple[str, ...]
    """Names of the libraries that it is linked with."""
    symbols: frozenset[tuple[str, str]]
    """Undefined symbols, each with its version, or "" without one."""


@dataclass(frozen=True)
class _Section:
    kind: int
    offset: int
    size: int
    link: int


def wanted_by(library: Path) -> LibraryNeeds:
    """Read the requirements of `library`. Raises UserError: it is no 64-bit library; OSError."""
    data = library.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        raise UserError(f"{library}: not a library for 64-bit Linux")
    sections = _sections(data)
    of = {section.kind: section for section in sections}
    if _DYNAMIC not in of or _DYNSYM not in of:
        return LibraryNeeds((), frozenset())
    dynamic, symbols = of[_DYNAMIC], of[_DYNSYM]
    names = sections[dynamic.link]
    entries = struct.iter_unpack("<QQ", data[dynamic.offset : dynamic.offset + dynamic.size])
    libraries = tuple(_text(data, names, value) for tag, value in entries if tag == _NEEDED)
    versions = dict(_versions(data, of[_VERNEED], sections[of[_VERNEED].link])) if _VERNEED in of else {}
    versym = of.get(_VERSYM)
    wanted = set()
    for index, at in enumerate(range(symbols.offset, symbols.offset + symbols.size, 24)):
        name, _info, _other, section = struct.unpack_from("<IBBH", data, at)
        if section == 0 and name:
            number = struct.unpack_from("<H", data, versym.offset + 2 * index)[0] & 0x7FFF if versym else 0
            wanted.add((_text(data, sections[symbols.link], name), versions.get(number, "")))
    return LibraryNeeds(libraries, frozenset(wanted))


def _sections(data: bytes) -> list[_Section]:
    (start,) = struct.unpack_from("<Q", data, 0x28)
    size, count = struct.unpack_from("<HH", data, 0x3A)
    headers = (struct.unpack_from("<IIQQQQI", data, start + size * i) for i in range(count))
    return [_Section(kind, offset, length, link) for _name, kind, _flags, _address, offset, length, link in headers]


def _versions(data: bytes, needs: _Section, names: _Section) -> Iterator[tuple[int, str]]:
    """Required versions of other libraries, by their number in the symbol table."""
    at = needs.offset
    while True:
        _version, count, _file, first, following = struct.unpack_from("<HHIII", data, at)
        entry = at + first
        for _ in range(count):
            _hash, _flags, number, name, step = struct.unpack_from("<IHHII", data, entry)
            yield number & 0x7FFF, _text(data, names, name)
            entry += step
        if not following:
            return
        at += following


def _text(data: bytes, strings: _Section, offset: int) -> str:
    start = strings.offset + offset
    return data[start : data.index(b"\0", start)].decode()
