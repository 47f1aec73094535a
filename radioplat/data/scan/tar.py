"""The members of a tar by its headers alone, past damage too; contents are jumped over.

Several times faster than `tarfile`, and nothing is believed that the bytes at hand do not show: of a sparse file, say,
only what it takes up in the shard counts. The time is proportional to the bytes, whatever they are.
"""

from __future__ import annotations

import re
import tarfile
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from radioplat.data.storage.read_ahead import Window

BLOCK = tarfile.BLOCKSIZE
RECORD = tarfile.RECORDSIZE  # an archive is padded with zeros to a multiple of this
SEARCH_BYTES = 1 << 24  # how far behind damage the next header is looked for
_ZEROS = b"\0" * BLOCK
# Types of headers.
_LONG_NAME, _GNU_SPARSE, _FOLDER = b"LS5"
_PAX = frozenset(b"xX")
_EXTENDED = frozenset(b"xXgLK")  # of the member behind them; nothing of g and K is wanted here
_REGULAR = frozenset(b"07\0")
_WITHOUT_CONTENT = frozenset(b"123456")  # whatever their size says
_GLANCE = 3 * BLOCK  # a pax header, its records, and the header behind them
_MOST_RECORDS = 1 << 20  # bytes of a name or of records before a member
_TELLING = re.compile(rb"path=|size=|GNU\.sparse").search
_MODULUS = 65521  # of adler32


class Member(NamedTuple):
    """A member that is whole.

    Attributes:
        name: as written, bytes that are not UTF-8 as surrogates.
        kind: ``file``, ``folder`` or ``other`` (links, sparse and special files).
        header: byte at which its first header stands.
        offset, size: of its content, bytes.
    """

    name: str
    kind: str
    header: int
    offset: int
    size: int


class Damage(NamedTuple):
    """A stretch of the file that holds no readable member.

    Attributes:
        reason: ``not_a_tar``, ``truncated_tar``, ``corrupt_tar``.
        offset, length: bytes that are lost.
        name: of the member that begins there, if it can be extended.
    """

    reason: str
    offset: int
    length: int
    detail: str
    name: str = ""


class _BadHeader(Exception):
    """What stands at byte ``place`` is no header."""

    def __init__(self, place: int) -> None:
        super().__init__(place)
        self.place = place


def walk_tar(window: Window) -> Iterator[Member | Damage]:
    """Members and damage, in the order of the file.

    Raises:
        OSError: the storage fails for good.
    """
    place, size = 0, window.size
    while True:
        at = window.hold(place, min(_GLANCE, size - place) if place < size else 0)
        if size - place < BLOCK or len(window.data) - at < BLOCK:  # it may have become shorter since it was opened
            yield Damage("truncated_tar", place, size - place, f"it ends at byte {size} without an end-of-archive mark")
            return
        if not window.data[at] and window.data[at : at + BLOCK] == _ZEROS:
            if _is_zero_from(window, place):
                if size - place < 2 * BLOCK:
                    yield Damage("truncated_tar", place, size - place, f"it ends at byte {size} with a lone zero block")
                return
            found = _next_header(window, place + BLOCK)
            end = found if found >= 0 else size
            yield Damage("corrupt_tar", place, end - place, "zeros where a member header should stand")
            if found < 0:
                return
            place = found
            continue
        try:
            member, following = _member(window, place)
        except _BadHeader as bad:
            found = _next_header(window, bad.place + BLOCK)
            if bad.place == 0 and found < 0:
                yield Damage("not_a_tar", 0, size, "no member header at its beginning")
                return
            end = found if found >= 0 else size
            lost = "what follows is lost" if found < 0 else f"it goes on at byte {found}"
            yield Damage("corrupt_tar", place, end - place, f"no member header at byte {bad.place}; {lost}")
            if found < 0:
                return
            place = found
            continue
        if member is None or following > size and member.offset + member.size > size:
            name = member.name if member else ""
            yield Damage("truncated_tar", place, size - place, f"it ends at byte {size}, inside a member", name)
            return
        yield member
        place = min(following, size)  # the last bytes that pad a member may be missing


def _member(window: Window, place: int) -> tuple[Member | None, int]:
    """The member whose first header stands at ``place``, None if the file ends inside its headers; and what follows.

    Before a member's own header there may be any number of extended headers with its name and size (POSIX.1-2008, pax,
    "Extended Header"; GNU tar's long names). Where two name it the first counts, as with `tarfile`.

    Raises:
        _BadHeader: one of the headers cannot be read. The search for the next one begins behind that one, so that no
            header of a chain is read twice.
    """
    last, name, pax_size, sparse = place, b"", -1, False
    while True:
        at = window.hold(last, BLOCK)
        data = window.data
        size = _checked_size(data, at)
        if size < 0:
            raise _BadHeader(last)
        kind = data[at + 156]
        if kind not in _EXTENDED:
            break
        following = last + BLOCK + _padded(size)
        if size > _MOST_RECORDS:
            raise _BadHeader(last)
        if following + BLOCK > window.size:
            return None, following
        at = window.hold(last, following + BLOCK - last) + BLOCK
        content = window.data[at : at + size]
        if kind == _LONG_NAME:
            name = name or content.partition(b"\0")[0]
        elif kind in _PAX and _TELLING(content):
            extended = _pax(content)
            if extended is None:
                raise _BadHeader(last)
            name = name or extended.name
            pax_size = extended.size if pax_size < 0 else pax_size
            sparse = sparse or extended.sparse
        last = following
    if not name:
        name = _own_name(data, at)
    if pax_size >= 0:
        size = pax_size
    offset = last + BLOCK
    if kind == _GNU_SPARSE:
        offset = _behind_sparse_map(window, last)
    plain = kind in _REGULAR and not sparse
    if kind in _WITHOUT_CONTENT:
        size = 0
    folder = kind == _FOLDER or plain and name[-1:] == b"/"  # before there was a type for folders, the slash told them
    text, is_a = name.decode("utf-8", "surrogateescape"), "folder" if folder else "file" if plain else "other"
    return Member(text, is_a, place, offset, size), offset + _padded(size)


def _padded(size: int) -> int:
    return (size + BLOCK - 1) // BLOCK * BLOCK


def _own_name(data: bytes, at: int) -> bytes:
    """The name in the header at ``data[at]``."""
    end = data.find(b"\0", at, at + 100)
    name = data[at : end if end >= 0 else at + 100]
    if data[at + 345] and data[at + 257 : at + 263] == b"ustar\0":
        name = data[at + 345 : at + 500].partition(b"\0")[0] + b"/" + name
    return name


def _behind_sparse_map(window: Window, header: int) -> int:
    """Where the content of GNU tar's old sparse member begins: its map may go on in blocks behind the header."""
    place, more = header + BLOCK, window.read(header + 482, 1)
    while more not in (b"", b"\0"):
        more = window.read(place + 504, 1)
        place += BLOCK
    return place


class _Records(NamedTuple):
    """What pax records say of a member: an empty name and a size of -1 where they say nothing of it."""

    name: bytes
    size: int
    sparse: bool


def _pax(records: bytes) -> _Records | None:
    """None where they are no records."""
    name, sparse_name, length, sparse, at = b"", b"", -1, False, 0
    while at < len(records):
        try:
            space = records.index(b" ", at, at + 20)
            end = at + int(records[at:space])
            key, found, value = records[space + 1 : end - 1].partition(b"=")
            if not found or end <= space or end > len(records):
                return None
            if key == b"path":
                name = value
            elif key == b"size":
                length = int(value)
                if length < 0:
                    return None
            elif key.startswith(b"GNU.sparse"):
                sparse = True
                sparse_name = value if key == b"GNU.sparse.name" else sparse_name
        except ValueError:
            return None
        at = end
    return _Records(sparse_name or name, length, sparse)


def _checked_size(data: bytes, at: int) -> int:
    """The size field of the header at ``data[at]``; -1 where its checksum or its size says that this is no header.

    The checksum is the sum of the header's bytes, its own counted as blanks. adler32's low half is 1 + the sum
    modulo 65521 (RFC 1950), ten times faster than sum() over the block.
    """
    block = data[at : at + BLOCK]
    field = data[at + 148 : at + 156]
    wanted = _sums.get(field)
    if wanted is None:
        wanted = _sums[field] = _wanted_sum(field)
        if len(_sums) > 100_000:
            _sums.clear()
    if len(block) < BLOCK or zlib.adler32(block) & 0xFFFF != wanted and not _odd_sum(block, field):
        return -1
    try:
        return int(data[at + 124 : at + 135], 8)  # as all tars of today write it: eleven digits
    except ValueError:
        return _odd_size(block[124:136])


_sums: dict[bytes, int] = {}  # checksum field -> what adler32's low half must then be


def _wanted_sum(field: bytes) -> int:
    try:
        return (int(field.partition(b"\0")[0].strip(), 8) - 256 + sum(field) + 1) % _MODULUS
    except ValueError:
        return -1


def _odd_sum(block: bytes, field: bytes) -> bool:
    """Whether the sum holds as some old tars made it, of signed bytes."""
    try:
        stored = int(field.partition(b"\0")[0].strip() or b"0", 8)
    except ValueError:
        return False
    return stored == 256 + sum(b - 256 if b > 127 else b for b in block[:148] + block[156:])


def _odd_size(field: bytes) -> int:
    """A size in base 256, as GNU tar writes large ones, or in octal with less than eleven digits; -1 for neither."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:])
    try:
        return int(field.partition(b"\0")[0].strip() or b"0", 8)
    except ValueError:
        return -1


def _is_zero_from(window: Window, place: int) -> bool:
    """Whether nothing but zeros follows, as behind a whole archive; far behind it nobody looks."""
    end, step = min(place + SEARCH_BYTES, window.size), RECORD
    while place < end:
        if window.read(place, min(step, end - place)).strip(b"\0"):
            return False
        place, step = place + step, 1 << 16
    return True


def _next_header(window: Window, place: int) -> int:
    """Where the next header stands, -1 if none is near. A magic number is asked for too: sums alone occur by chance."""
    end = min(place + SEARCH_BYTES, window.size)
    step = 1 << 16
    while place < end:
        data = window.read(place, min(step, end - place))
        at = data.find(b"ustar")
        while at >= 0:
            start = at - 257
            if start >= 0 and start % BLOCK == 0 and start + BLOCK <= len(data):
                if _checked_size(data, start) >= 0:
                    return place + start
            at = data.find(b"ustar", at + 1)
        if len(data) < step:
            break
        place += step
    return -1
