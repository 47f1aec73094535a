"""Look through one shard once: where each image lies, how large it is, and what its sidecars say.

Nothing is ever extracted: names inside a tar, ``../x`` too, are only names here.
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

# What one shard tells of each image; the index adds source and shard.
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
        ("caption_offset", pa.int64()),  # of the JSON sidecar that holds a caption; -1 if none
        ("caption_length", pa.int64()),
        ("given_label", pa.int64()),  # a number from the sidecar; -1 if none
        ("label_name", pa.large_string()),
    ]
)


UNREADABLE = "unreadable_shard"  # reason of a fault: the storage failed
FAULT_SCHEMA = pa.schema(
    [
        *((name, pa.large_string()) for name in ("shard", "key", "reason", "detail")),
        ("offset", pa.int64()),  # of the bytes that are lost or unused; -1 where no bytes are meant
        ("length", pa.int64()),
    ]
)


@dataclass(frozen=True)
class Fault:
    """Something in a shard that cannot be used.

    Attributes:
        shard: path of the file.
        key: of the sample, or the member's name; empty where the shard as a whole is meant.
        reason: ``unreadable_shard, not_a_tar, empty_tar, truncated_tar, corrupt_tar, not_an_image, empty_member,
            duplicate_key, no_image, not_a_file, hidden_member, bad_sidecar``.
        detail: for a person.
        offset, length: the bytes meant, from a member's first header on; -1 and 0 where none are.
    """

    shard: str
    key: str
    reason: str
    detail: str = ""
    offset: int = -1
    length: int = 0


@dataclass
class Scan:
    """What one shard holds: a table of :data:`SCAN_SCHEMA`, by offset, and what was wrong."""

    rows: pa.Table
    faults: list[Fault]


class _Sample:
    __slots__ = ("blamed", "first", "image", "sidecar")

    def __init__(self, first: int) -> None:
        self.first = first  # byte of its first member
        self.image: tuple[int, int, ImageHeader] | None = None  # offset, length, header
        self.sidecar: dict[str, Any] | None = None
        self.blamed = False


def scan_tar(path: str) -> Scan:
    """Scan the tar at ``path``; whatever is wrong with it becomes a fault, never an exception."""
    shard = _TarScan(path)
    try:
        window = Window(path)
        if window.size == 0:
            shard.blame("", "empty_tar", "0 bytes")
        else:
            for found in walk_tar(window):
                shard.take(window, found)
    except OSError as error:
        shard.blame("", UNREADABLE, error.strerror or str(error))
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
    """What is known of one tar while it is walked."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._samples: dict[str, _Sample] = {}
        self._faults: list[Fault] = []

    def blame(self, key: str, reason: str, detail: str = "", offset: int = -1, length: int = 0) -> None:
        self._faults.append(Fault(self._path, key, reason, detail, offset, length))

    def take(self, window: Window, found: Member | Damage) -> None:
        if isinstance(found, Damage):
            self.blame(_text(found.name), found.reason, found.detail, found.offset, found.length)
            return
        if found.kind == "folder":
            return
        name = found.name if found.name.isascii() else _text(found.name)
        key, extension = split_name(name)
        if extension not in _WANTED and extension.rpartition(".")[2] not in _WANTED:
            return
        if not key or key[-1] == "/":
            self._blame_member(found, name, "hidden_member", "the name starts with a dot")
            return
        sample = self._samples.get(key)
        if sample is None:
            sample = self._samples[key] = _Sample(found.header)
        if found.kind == "other":
            sample.blamed = True
            self._blame_member(found, name, "not_a_file", "a link or a sparse or special file")
        elif extension in IMAGE_EXTENSIONS:
            self._take_image(window, found, key, name, sample)
        elif extension in _WANTED:
            self._take_sidecar(window, found, key, name, extension, sample)

    def finish(self) -> Scan:
        rows = []
        for key, sample in self._samples.items():
            if sample.image is not None:
                rows.append(_row(key, sample.image, sample.sidecar))
            elif not sample.blamed:
                self.blame(key, "no_image", "no member of this key has an image extension", sample.first)
        if not self._samples and not self._faults:
            self.blame("", "empty_tar", "no members")
        return Scan(_table(rows), self._faults)

    def _take_image(self, window: Window, member: Member, key: str, name: str, sample: _Sample) -> None:
        if sample.image is not None:
            self._blame_member(member, key, "duplicate_key", f"{name} at byte {member.offset}")
            return
        offset, size = member.offset, member.size
        if size == 0:
            sample.blamed = True
            self._blame_member(member, key, "empty_member", name)
            return

        def read(at: int, length: int) -> bytes:
            return window.read(offset + at, min(length, size - at)) if at < size else b""

        header = header_at(read, lambda: window.span(offset, size))
        if header is None:
            sample.blamed = True
            self._blame_member(member, key, "not_an_image", name)
            return
        sample.image = (offset, size, header)

    def _take_sidecar(self, window: Window, member: Member, key: str, name: str, kind: str, sample: _Sample) -> None:
        if member.size > MAX_SIDECAR_BYTES:
            self._blame_member(member, key, "bad_sidecar", f"{name} has {member.size} bytes")
            return
        data = window.read(member.offset, member.size)
        sidecar = sample.sidecar or {}
        try:
            if kind == "cls":
                found = {} if "given_label" in sidecar or "label_name" in sidecar else _label(data.decode().strip())
            else:
                content = _parse(data)
                found = _from_json(content)
                if wrong := _no_label(content):
                    self._blame_member(member, key, "bad_sidecar", f"{name}: {wrong}")
                if found.pop("caption", None) is not None:
                    found["caption_offset"], found["caption_length"] = member.offset, member.size
                if "given_label" in found or "label_name" in found:  # JSON wins over .cls, whichever comes first
                    sidecar.pop("given_label", None)
                    sidecar.pop("label_name", None)
        except (ValueError, RecursionError) as error:
            self._blame_member(member, key, "bad_sidecar", f"{name}: {error}")
            return
        sample.sidecar = sidecar | found if sidecar else found

    def _blame_member(self, member: Member, key: str, reason: str, detail: str = "") -> None:
        self.blame(key, reason, detail, member.header, member.offset + member.size - member.header)


_scan_json = json.JSONDecoder().scan_once  # type: ignore[attr-defined]  # CPython has it, typeshed does not


def _parse(data: bytes) -> Any:
    """As `json.loads`, which spends most of its time around its own scanner."""
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
    found: dict[str, Any] = {}
    get = content.get
    for name in ("sha256", "md5", "uid"):
        if (digest := get(name)) is not None and digest != "":
            found["hash"] = _text(str(digest))
            break
    if isinstance(get("caption"), str):
        found["caption"] = True
    for name in ("label", "id"):
        if (label := get(name)) is not None:
            found |= _label(label)
            break
    if isinstance(get("label_name"), str):
        found["label_name"] = _text(content["label_name"])
    return found


def _no_label(content: dict[str, Any]) -> str | None:
    """What is wrong with a label that is given and is none; a negative number says that there is none, as null does."""
    for name in ("label", "id"):
        if (label := content.get(name)) is not None:
            if isinstance(label, str) or (type(label) is int and abs(label) < 2**63):  # a bool is an int, too
                return None
            return f"{name} is {json.dumps(label)[:40]}, neither a whole number of 63 bits nor text"
    return None


def _label(value: Any) -> dict[str, Any]:
    """A number is the label itself, text is its name."""
    if isinstance(value, str):
        number = value.removeprefix("-")
        value = int(value) if number.isascii() and number.isdigit() and len(number) < 19 else value
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63:
        return {"given_label": value} if value >= 0 else {}
    return {"label_name": _text(value)} if isinstance(value, str) and value else {}


def _row(key: str, image: tuple[int, int, ImageHeader], sidecar: dict[str, Any] | None) -> tuple:
    """One row of :data:`SCAN_SCHEMA`."""
    offset, length, header = image
    if not sidecar:
        return (offset, length, header.width, header.height, header.format, key, None, 0, -1, 0, -1, None)
    get = sidecar.get
    return (
        offset, length, header.width, header.height, header.format, key, get("hash"), hash_key(get("hash")),
        get("caption_offset", -1), get("caption_length", 0), get("given_label", -1), get("label_name"),
    )  # fmt: skip


def hash_key(value: str | None) -> int:
    """64 bits that stand for a hash where hashes are counted and compared; never 0 but for None.

    Among a thousand million different images one chance in forty makes a single pair look equal.
    """
    if value is None:
        return 0
    return _INT64(hashlib.blake2b(value.encode(), digest_size=8).digest())[0] or 1


def _table(rows: list[tuple]) -> pa.Table:
    columns = list(zip(*sorted(rows, key=lambda row: row[0]), strict=True)) or [()] * len(SCAN_SCHEMA)
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, SCAN_SCHEMA, strict=True)], schema=SCAN_SCHEMA)


def split_name(name: str) -> tuple[str, str]:
    """Key and lower-case extension: the base name is cut at its first dot, the folder stays part of the key."""
    dot = name.find(".", name.rfind("/") + 1)
    return (name[:dot], name[dot + 1 :].lower()) if dot >= 0 else (name, "")


def _text(name: str) -> str:
    """Names are bytes in a tar; what is not UTF-8 is replaced, since Arrow holds nothing else."""
    return name if name.isascii() else name.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
