"""The members of a tar by its headers alone, past damage too; contents are jumped over.

Plain members and pax headers (what webdataset, img2dataset and GNU tar write) are read here, several times faster than
`tarfile` reads them; whatever else stands in a header is `tarfile`'s to understand.
"""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from radioplat.data.window import Window

BLOCK = tarfile.BLOCKSIZE
RECORD = tarfile.RECORDSIZE  # an archive is padded with zeros to a multiple of this
SEARCH_BYTES = 1 << 24  # how far behind damage the next header is looked for
_ZEROS = b"\0" * BLOCK
_REGULAR = (b"0", b"\0")
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
        name: of the member that begins there, if it can be told.
    """

    reason: str
    offset: int
    length: int
    detail: str
    name: str = ""


class _BadHeader(Exception):
    """What stands here is no header."""


def walk_tar(window: Window) -> Iterator[Member | Damage]:
    """Members and damage, in the order of the file.

    Raises:
        OSError: the storage fails for good.
    """
    place, size = 0, window.size
    while True:
        block = window.read(place, BLOCK)
        if len(block) < BLOCK:
            yield Damage("truncated_tar", place, size - place, f"it ends at byte {size} without an end-of-archive mark")
            return
        if block == _ZEROS:
            found = _behind_the_end(window, place)
            if found < 0:
                return
            yield Damage("corrupt_tar", place, found - place, "zeros where a member header should stand")
            place = found
            continue
        try:
            member, following = _member(window, place, block)
        except _BadHeader:
            found = _next_header(window, place + BLOCK)
            if place == 0 and found < 0:
                yield Damage("not_a_tar", 0, size, "no member header at its beginning")
                return
            end = found if found >= 0 else size
            lost = "what follows is lost" if found < 0 else f"it goes on at byte {found}"
            yield Damage("corrupt_tar", place, end - place, f"no member header at byte {place}; {lost}")
            if found < 0:
                return
            place = found
            continue
        if member is None or following > size and member.offset + member.size > size:
            name = member.name if member else ""
            yield Damage("truncated_tar", place, size - place, f"it ends at byte {size}, inside a member", name)
            return
        yield member
        place = following


def _member(window: Window, place: int, block: bytes) -> tuple[Member | None, int]:
    """The member whose first header is ``block``, None if the file ends inside its headers; where the next stands."""
    size = _checked_size(block)
    kind = block[156:157]
    if kind in _REGULAR:
        return _plain(_name(block), size, place, place)
    if kind == b"x":
        found = _with_pax(window, place, size)
        if found is not None:
            return found
    return _odd(window, place)


def _plain(name: str, size: int, header: int, last_header: int) -> tuple[Member, int]:
    offset = last_header + BLOCK
    folder = name.endswith("/")  # before there was a type for folders, the slash told them
    return Member(name, "folder" if folder else "file", header, offset, size), offset + -(-size // BLOCK) * BLOCK


def _with_pax(window: Window, place: int, size: int) -> tuple[Member | None, int] | None:
    """A member behind a pax header (POSIX.1-2008, pax, "Extended Header"); None where it is more than name and size."""
    last = place + BLOCK + -(-size // BLOCK) * BLOCK
    if last + BLOCK > window.size:
        return None, last
    if size > 1 << 20:
        return None
    data = window.read(place + BLOCK, last - place)
    block, data = data[last - place - BLOCK :], data[:size]
    if block[156:157] not in _REGULAR:
        return None
    name, length, at = _name(block), _checked_size(block), 0
    while at < size:
        try:
            space = data.index(b" ", at, at + 20)
            end = at + int(data[at:space])
            key, found, value = data[space + 1 : end - 1].partition(b"=")
        except ValueError:
            return None
        if not found or end <= space or end > size:
            return None
        if key == b"path":
            name = value.decode("utf-8", "surrogateescape")
        elif key == b"size":
            if not value.isdigit():
                return None
            length = int(value)
        elif key.startswith(b"GNU.sparse") or key == b"hdrcharset":
            return None
        at = end
    return _plain(name, length, place, last)


def _odd(window: Window, place: int) -> tuple[Member | None, int]:
    """Whatever begins here, by `tarfile`: long names of GNU tar, links, sparse files, base-256 sizes."""
    stream = window.span(place, window.size - place)
    try:
        with tarfile.open(fileobj=stream, mode="r:", errors="surrogateescape") as tar:
            info, following = tar.next(), tar.offset
    except (tarfile.TarError, ValueError, OverflowError, RecursionError) as error:
        if "unexpected end of data" in str(error) or "truncated" in str(error):
            return None, window.size
        raise _BadHeader from None
    if info is None or info.size < 0 or following < BLOCK:
        raise _BadHeader
    plain = info.isreg() and not info.issparse()
    kind = "folder" if info.isdir() else "file" if plain else "other"
    return Member(info.name, kind, place, place + info.offset_data, info.size), place + following


def _checked_size(block: bytes) -> int:
    """The size field of a header whose checksum holds: the sum of its bytes, the checksum's own counted as blanks."""
    if len(block) < BLOCK:
        raise _BadHeader
    try:
        stored = int(block[148:156].split(b"\0", 1)[0] or b"0", 8)
    except ValueError:
        raise _BadHeader from None
    wanted = stored - 256 + sum(block[148:156])
    # adler32's low half is 1 + the sum modulo 65521: ten times faster than sum() over the block.
    if (wanted + 1) % _MODULUS != zlib.adler32(block) & 0xFFFF and wanted != _signed_sum(block):
        raise _BadHeader
    try:
        base256 = block[124] in (0x80, 0xFF)
        size = tarfile.nti(block[124:136]) if base256 else int(block[124:136].split(b"\0", 1)[0].strip() or b"0", 8)
    except (ValueError, tarfile.TarError):
        raise _BadHeader from None
    if size < 0:
        raise _BadHeader
    return size


def _signed_sum(block: bytes) -> int:
    """Some old tars summed signed bytes."""
    field = block[148:156]
    return sum(b - 256 if b > 127 else b for b in block) - sum(b - 256 if b > 127 else b for b in field) + sum(field)


def _name(block: bytes) -> str:
    name = block[:100].split(b"\0", 1)[0]
    if block[257:263] == b"ustar\0" and block[345]:
        name = block[345:500].split(b"\0", 1)[0] + b"/" + name
    return name.decode("utf-8", "surrogateescape")


def _behind_the_end(window: Window, place: int) -> int:
    """-1 where the archive ends at ``place``; else the next header behind these zeros."""
    left = window.size - place
    if left <= RECORD + BLOCK and not window.read(place, left).strip(b"\0"):
        return -1
    return _next_header(window, place + BLOCK)


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
                try:
                    _checked_size(data[start : start + BLOCK])
                    return place + start
                except _BadHeader:
                    pass
            at = data.find(b"ustar", at + 1)
        if len(data) < step:
            break
        place += step
    return -1
