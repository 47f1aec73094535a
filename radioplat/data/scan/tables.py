"""The tables of a scan: a row for each image, a fault for each shard or member that cannot be used."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from radioplat.data.images.headers import ImageHeader
from radioplat.data.scan.tar import Member

_INT64 = struct.Struct("<q").unpack

# The columns of each image of a shard; the index adds source and shard.
SCAN_SCHEMA = pa.schema(
    [
        ("offset", pa.int64()),  # bytes from the start of the shard
        ("length", pa.int64()),  # bytes
        ("width", pa.int32()),  # pixels, upright
        ("height", pa.int32()),
        ("format", pa.string()),
        ("key", pa.large_string()),
        ("hash", pa.large_string()),  # from the sidecar; null if it has none
        ("hash_key", pa.int64()),  # 64 bits of it, see hash_key(); 0 if it has none
        ("caption_offset", pa.int64()),  # of the JSON sidecar with a caption; -1 if none
        ("caption_length", pa.int64()),
        ("given_label", pa.int64()),  # a number from the sidecar; -1 if none
        ("label_name", pa.large_string()),
    ]
)


UNREADABLE = "unreadable_shard"  # reason of a fault: the storage failed
FAULT_SCHEMA = pa.schema(
    [
        *((name, pa.large_string()) for name in ("shard", "key", "reason", "detail")),
        ("offset", pa.int64()),  # of the lost or unused bytes; -1 if there are none
        ("length", pa.int64()),
    ]
)


@dataclass(frozen=True)
class Fault:
    """An unusable shard or member.

    Attributes:
        shard: path of the file.
        key: of the sample, or the member's name; empty if the whole shard is unusable.
        reason: ``unreadable_shard, not_a_tar, empty_tar, truncated_tar, corrupt_tar, not_an_image, empty_member,
            too_many_bytes, duplicate_key, several_images, no_image, not_a_file, hidden_member, bad_sidecar``.
        detail: explanation for the user.
        offset, length: the unusable bytes, from the member's first header; -1 and 0 if there are none.
    """

    shard: str
    key: str
    reason: str
    detail: str = ""
    offset: int = -1
    length: int = 0


@dataclass
class Scan:
    """Result of one shard.

    Attributes:
        rows: a table of :data:`SCAN_SCHEMA`, sorted by offset.
        faults: what cannot be used.
        sidecars: the JSON sidecar of each row; None if it has none that is valid.
    """

    rows: pa.Table
    faults: list[Fault]
    sidecars: list[Member | None]


def scan_row(key: str, image: tuple[int, int, ImageHeader], sidecar: dict[str, Any] | None) -> tuple:
    """Return one row of :data:`SCAN_SCHEMA`.

    Args:
        image: first byte, length and header.
        sidecar: the columns that its sidecars give, by name.
    """
    offset, length, header = image
    if not sidecar:
        return (offset, length, header.width, header.height, header.format, key, None, 0, -1, 0, -1, None)
    get = sidecar.get
    return (
        offset, length, header.width, header.height, header.format, key, get("hash"), hash_key(get("hash")),
        get("caption_offset", -1), get("caption_length", 0), get("given_label", -1), get("label_name"),
    )  # fmt: skip


def hash_key(value: str | None) -> int:
    """Return 64 bits of a hash, for counting and comparing; 0 only for None.

    Among 1e9 different images the chance of any two equal keys is 1 in 40.
    """
    if value is None:
        return 0
    return _INT64(hashlib.blake2b(value.encode(), digest_size=8).digest())[0] or 1


def scan_table(rows: list[tuple]) -> pa.Table:
    """Return a table of :data:`SCAN_SCHEMA` of rows of :func:`scan_row`."""
    columns = list(zip(*rows, strict=True)) or [()] * len(SCAN_SCHEMA)
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, SCAN_SCHEMA, strict=True)], schema=SCAN_SCHEMA)
