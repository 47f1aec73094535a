"""Scan one shard: byte range, size and format of each image, and the fields of its sidecars.

No member is extracted to disk, so that names such as ``../x`` are harmless.
"""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from radioplat.data.images.headers import IMAGE_EXTENSIONS, ImageHeader, header_at
from radioplat.data.scan.tar import Damage, Member, walk_tar
from radioplat.data.storage.read_ahead import Window

MAX_SIDECAR_BYTES = 1 << 24
_INT64 = struct.Struct("<q").unpack
_WANTED = IMAGE_EXTENSIONS | {"json", "cls"}

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
            duplicate_key, no_image, not_a_file, hidden_member, bad_sidecar``.
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
    """Result of one shard: a table of :data:`SCAN_SCHEMA`, sorted by offset, and the faults."""

    rows: pa.Table
    faults: list[Fault]


class _Sample:
    __slots__ = ("first", "has_fault", "image", "sidecar")

    def __init__(self, first: int) -> None:
        self.first = first  # byte of its first member
        self.image: tuple[int, int, ImageHeader] | None = None  # offset, length, header
        self.sidecar: dict[str, Any] | None = None
        self.has_fault = False


def scan_tar(path: str) -> Scan:
    """Scan the tar at ``path``; every problem with it becomes a fault, never an exception."""
    shard = _TarScan(path)
    try:
        window = Window(path)
        if window.size == 0:
            shard.add_fault("", "empty_tar", "0 bytes")
        else:
            for item in walk_tar(window):
                shard.add(window, item)
    except OSError as error:
        shard.add_fault("", UNREADABLE, error.strerror or str(error))
    return shard.finish()


def scan_image(path: str, name: str) -> Scan:
    """Scan one image file of an ``images_dir``; its parent folder below the root, if any, is its label.

    Args:
        path: of the file.
        name: the path below ``images_dir``, with ``/``.
    """
    try:
        window = Window(path)
        header = header_at(window.read, lambda: window.span(0, window.size))
    except OSError as error:
        return Scan(_table([]), [Fault(path, name, UNREADABLE, error.strerror or str(error))])
    if header is None:
        return Scan(_table([]), [Fault(path, name, "not_an_image" if window.size else "empty_member")])
    parent = name.rpartition("/")[0].rpartition("/")[2]
    label = {"label_name": _text(parent)} if parent else None
    return Scan(_table([_row(_text(split_name(name)[0]), (0, window.size, header), label)]), [])


class _TarScan:
    """Samples and faults of one tar during its scan."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._samples: dict[str, _Sample] = {}
        self._faults: list[Fault] = []

    def add_fault(self, key: str, reason: str, detail: str = "", offset: int = -1, length: int = 0) -> None:
        self._faults.append(Fault(self._path, key, reason, detail, offset, length))

    def add(self, window: Window, item: Member | Damage) -> None:
        if isinstance(item, Damage):
            self.add_fault(_text(item.name), item.reason, item.detail, item.offset, item.length)
            return
        if item.kind == "folder":
            return
        name = item.name if item.name.isascii() else _text(item.name)
        key, extension = split_name(name)
        if extension not in _WANTED and extension.rpartition(".")[2] not in _WANTED:
            return
        if not key or key[-1] == "/":
            self._add_member_fault(item, name, "hidden_member", "the name starts with a dot")
            return
        sample = self._samples.get(key)
        if sample is None:
            sample = self._samples[key] = _Sample(item.header)
        if item.kind == "other":
            sample.has_fault = True
            self._add_member_fault(item, name, "not_a_file", "a link or a sparse or special file")
        elif extension in IMAGE_EXTENSIONS:
            self._add_image(window, item, key, name, sample)
        elif extension in _WANTED:
            self._add_sidecar(window, item, key, name, extension, sample)

    def finish(self) -> Scan:
        rows = []
        for key, sample in self._samples.items():
            if sample.image is not None:
                rows.append(_row(key, sample.image, sample.sidecar))
            elif not sample.has_fault:
                self.add_fault(key, "no_image", "no member of this key has an image extension", sample.first)
        if not self._samples and not self._faults:
            self.add_fault("", "empty_tar", "no members")
        return Scan(_table(rows), self._faults)

    def _add_image(self, window: Window, member: Member, key: str, name: str, sample: _Sample) -> None:
        if sample.image is not None:
            self._add_member_fault(member, key, "duplicate_key", f"{name} at byte {member.offset}")
            return
        offset, size = member.offset, member.size
        if size == 0:
            sample.has_fault = True
            self._add_member_fault(member, key, "empty_member", name)
            return

        def read(at: int, length: int) -> bytes:
            return window.read(offset + at, min(length, size - at)) if at < size else b""

        header = header_at(read, lambda: window.span(offset, size))
        if header is None:
            sample.has_fault = True
            self._add_member_fault(member, key, "not_an_image", name)
            return
        sample.image = (offset, size, header)

    def _add_sidecar(self, window: Window, member: Member, key: str, name: str, kind: str, sample: _Sample) -> None:
        if member.size > MAX_SIDECAR_BYTES:
            self._add_member_fault(member, key, "bad_sidecar", f"{name} has {member.size} bytes")
            return
        data = window.read(member.offset, member.size)
        sidecar = sample.sidecar or {}
        try:
            if kind == "cls":
                fields = {} if "given_label" in sidecar or "label_name" in sidecar else _label(data.decode().strip())
            else:
                content = _parse(data)
                fields = _from_json(content)
                if wrong := _no_label(content):
                    self._add_member_fault(member, key, "bad_sidecar", f"{name}: {wrong}")
                if fields.pop("caption", None) is not None:
                    fields["caption_offset"], fields["caption_length"] = member.offset, member.size
                if "given_label" in fields or "label_name" in fields:  # JSON replaces .cls, in any order
                    sidecar.pop("given_label", None)
                    sidecar.pop("label_name", None)
        except (ValueError, RecursionError) as error:
            self._add_member_fault(member, key, "bad_sidecar", f"{name}: {error}")
            return
        sample.sidecar = sidecar | fields if sidecar else fields

    def _add_member_fault(self, member: Member, key: str, reason: str, detail: str = "") -> None:
        self.add_fault(key, reason, detail, member.header, member.offset + member.size - member.header)


_scan_json = json.JSONDecoder().scan_once  # type: ignore[attr-defined]  # CPython has it, typeshed does not


def _parse(data: bytes) -> Any:
    """Parse like `json.loads`, without the overhead around its C scanner."""
    try:
        text = data.decode()
        content, end = _scan_json(text, 0)
        if end == len(text) or text[end:].isspace():
            return content
    except (StopIteration, ValueError):
        pass
    return json.loads(data)


def _from_json(content: Any) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise ValueError("a JSON object is expected")
    fields: dict[str, Any] = {}
    get = content.get
    for name in ("sha256", "md5", "uid"):
        if (digest := get(name)) is not None and digest != "":
            fields["hash"] = _text(str(digest))
            break
    if isinstance(get("caption"), str):
        fields["caption"] = True
    for name in ("label", "id"):
        if (label := get(name)) is not None:
            fields |= _label(label)
            break
    if isinstance(get("label_name"), str):
        fields["label_name"] = _text(content["label_name"])
    return fields


def _no_label(content: dict[str, Any]) -> str | None:
    """Describe an invalid label; None if it is valid or absent. A negative number means unlabelled, as null does."""
    for name in ("label", "id"):
        if (label := content.get(name)) is not None:
            if isinstance(label, str) or (type(label) is int and abs(label) < 2**63):  # a bool is an int, too
                return None
            return f"{name} is {json.dumps(label)[:40]}, neither a whole number of 63 bits nor text"
    return None


def _label(value: Any) -> dict[str, Any]:
    """Return the field of a label: a number is the label itself, other text is its name."""
    if isinstance(value, str):
        number = value.removeprefix("-")
        value = int(value) if number.isascii() and number.isdigit() and len(number) < 19 else value
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63:
        return {"given_label": value} if value >= 0 else {}
    return {"label_name": _text(value)} if isinstance(value, str) and value else {}


def _row(key: str, image: tuple[int, int, ImageHeader], sidecar: dict[str, Any] | None) -> tuple:
    """Return one row of :data:`SCAN_SCHEMA`."""
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


def _table(rows: list[tuple]) -> pa.Table:
    columns = list(zip(*sorted(rows, key=lambda row: row[0]), strict=True)) or [()] * len(SCAN_SCHEMA)
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, SCAN_SCHEMA, strict=True)], schema=SCAN_SCHEMA)


def split_name(name: str) -> tuple[str, str]:
    """Split a name at the first dot of its base name: key, with the folder, and lower-case extension."""
    dot = name.find(".", name.rfind("/") + 1)
    return (name[:dot], name[dot + 1 :].lower()) if dot >= 0 else (name, "")


def _text(name: str) -> str:
    """Replace bytes of a tar member's name that are not UTF-8, which Arrow requires."""
    return name if name.isascii() else name.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
