"""Header blocks of HTTP/2 (RFC 7541), as far as a server reads and writes them.

Reading keeps the table that the peer builds up; writing keeps none, so that an answer
needs nothing of the answers before it.
"""

from __future__ import annotations

from collections import deque
from functools import lru_cache

Field = tuple[bytes, bytes]

#: Size of the peer's table, bytes as section 4.1 counts them, while nothing else is agreed.
TABLE_BYTES = 4096
#: Longest list of fields, counted the same way: a byte may stand for a whole entry.
LIST_BYTES = 64 << 10
_OVERHEAD = 32

#: Appendix A, from index 1: names, those with values first.
_VALUED = (
    (b":authority", b""), (b":method", b"GET"), (b":method", b"POST"), (b":path", b"/"),
    (b":path", b"/index.html"), (b":scheme", b"http"), (b":scheme", b"https"),
    (b":status", b"200"), (b":status", b"204"), (b":status", b"206"), (b":status", b"304"),
    (b":status", b"400"), (b":status", b"404"), (b":status", b"500"), (b"accept-charset", b""),
    (b"accept-encoding", b"gzip, deflate"),
)  # fmt: skip
_NAMES = (
    "accept-language", "accept-ranges", "accept", "access-control-allow-origin", "age", "allow",
    "authorization", "cache-control", "content-disposition", "content-encoding",
    "content-language", "content-length", "content-location", "content-range", "content-type",
    "cookie", "date", "etag", "expect", "expires", "from", "host", "if-match",
    "if-modified-since", "if-none-match", "if-range", "if-unmodified-since", "last-modified",
    "link", "location", "max-forwards", "proxy-authenticate", "proxy-authorization", "range",
    "referer", "refresh", "retry-after", "server", "set-cookie", "strict-transport-security",
    "transfer-encoding", "user-agent", "vary", "via", "www-authenticate",
)  # fmt: skip
_STATIC: tuple[Field, ...] = (*_VALUED, *((name.encode(), b"") for name in _NAMES))
_STATUS, _LENGTH, _TYPE, _DATE = 8, 28, 31, 33

#: Appendix B: how many bits each byte's code has. The code is canonical: those of one
#: length follow each other in the order of the bytes, after all shorter ones.
_BITS = bytes.fromhex(
    "0d171c1c1c1c1c1c1c181e1c1c1e1c1c1c1c1c1c1c1c1e1c1c1c1c1c1c1c1c1c"
    "060a0a0c0d06080b0a0a080b080606060505050606060606060607080f060c0a"
    "0d06070707070707070707070707070707070707070707070807080d130d0e06"
    "0f05060506050606060507070606060506070605050607070707070f0b0e0d1c"
    "1416141416161617161717171717181718181617181717171715161716171718"
    "1615141616171715171616181516171715151615171617171416161617161617"
    "1a1a1413161716191a1a1a1b1b1a181913151a1b1b1a1b1815151a1a1c1b1b1b"
    "14181415161515171616191918181a171a1b1a1a1b1b1b1b1b1c1b1b1b1b1b1a"
)


def _codes() -> dict[int, int]:
    """Return the bytes by their codes, each with a one before its bits."""
    found, code, length = {}, 0, 0
    for bits, byte in sorted((bits, byte) for byte, bits in enumerate(_BITS)):
        code <<= bits - length
        length = bits
        found[1 << bits | code] = byte
        code += 1
    return found


_CODES = _codes()


class Decoder:
    """Reads the header blocks of one connection, in their order."""

    def __init__(self) -> None:
        self._table: deque[Field] = deque()
        self._size, self._most = 0, TABLE_BYTES

    def decode(self, block: bytes) -> list[Field]:
        """Return the fields of a block, names as they were sent.

        Raises:
            ValueError: it is none; nothing after it can be read.
        """
        found: list[Field] = []
        at, size = 0, 0
        while at < len(block):
            first = block[at]
            if first & 0x80:
                index, at = _integer(block, at, 7)
                field = self._entry(index)
            elif first & 0x40:
                field, at = self._literal(block, at, 6)
                self._add(field)
            elif first & 0x20:
                most, at = _integer(block, at, 5)
                if found or most > TABLE_BYTES:
                    raise ValueError("a table's size that was not agreed, or in the wrong place")
                self._most = most
                self._evict()
                continue
            else:
                field, at = self._literal(block, at, 4)
            size += _counted(field)
            if size > LIST_BYTES:
                raise ValueError(f"more than {LIST_BYTES} bytes of fields")
            found.append(field)
        return found

    def _entry(self, index: int) -> Field:
        if 0 < index <= len(_STATIC):
            return _STATIC[index - 1]
        own = index - len(_STATIC) - 1
        if not 0 <= own < len(self._table):
            raise ValueError(f"no entry {index} in the table")
        return self._table[own]

    def _literal(self, block: bytes, at: int, bits: int) -> tuple[Field, int]:
        index, at = _integer(block, at, bits)
        if index:
            name = self._entry(index)[0]
        else:
            name, at = _string(block, at)
        value, at = _string(block, at)
        return (name, value), at

    def _add(self, field: Field) -> None:
        self._table.appendleft(field)
        self._size += _counted(field)
        self._evict()

    def _evict(self) -> None:
        while self._size > self._most:
            self._size -= _counted(self._table.pop())


def answer_block(status: int, content_type: str, length: int, date: str) -> bytes:
    """Return the header block of an answer: literals that enter no table."""
    head = bytes((0x80 | _STATUS,)) if status == 200 else _said(_STATUS, str(status))
    return head + _said(_TYPE, content_type) + _said(_LENGTH, str(length)) + _said(_DATE, date)


def _said(index: int, value: str) -> bytes:
    raw = value.encode()
    assert len(raw) < 127  # its length is one byte; the values are ours
    if index < 15:
        return bytes((index, len(raw))) + raw
    return bytes((15, index - 15, len(raw))) + raw


def _counted(field: Field) -> int:
    return len(field[0]) + len(field[1]) + _OVERHEAD


def _integer(block: bytes, at: int, bits: int) -> tuple[int, int]:
    """Return a number of section 5.1 and where it ends."""
    most = (1 << bits) - 1
    value = block[at] & most
    at += 1
    if value < most:
        return value, at
    for shift in (0, 7, 14, 21):
        if at >= len(block):
            break
        byte = block[at]
        at += 1
        value += (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, at
    raise ValueError("a number that is cut off, or too large")


def _string(block: bytes, at: int) -> tuple[bytes, int]:
    if at >= len(block):
        raise ValueError("a string that is cut off")
    packed = block[at] & 0x80
    length, at = _integer(block, at, 7)
    raw = block[at : at + length]
    if len(raw) < length:
        raise ValueError("a string that is cut off")
    return (_unpacked(raw) if packed else raw), at + length


@lru_cache(maxsize=256)
def _unpacked(raw: bytes) -> bytes:
    """Return a string that was packed with the code of appendix B."""
    found = bytearray()
    code = 1
    for byte in raw:
        for at in (7, 6, 5, 4, 3, 2, 1, 0):
            code = code << 1 | byte >> at & 1
            known = _CODES.get(code)
            if known is not None:
                found.append(known)
                code = 1
        if code >> 31:  # longer than any code: the end's own, which nobody may send
            raise ValueError("a packed string with a code that there is not")
    # What is left are the first bits of the longest code, which has ones only.
    if code > 0xFF or code & (code + 1):
        raise ValueError("a packed string that is padded wrongly")
    return bytes(found)
