"""Look through one shard once: where each image lies, how large it is, and what its sidecars say.

Nothing is ever extracted: names inside a tar, ``../x`` too, are only names here.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import pyarrow as pa

from radioplat.data.files import open_stream
from radioplat.data.headers import IMAGE_EXTENSIONS, ImageHeader, image_header

HEADER_BYTES = 1 << 16  # read at a time for an image header; most fit into one read
MAX_SIDECAR_BYTES = 1 << 24

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
        ("content_hash", pa.large_string()),  # sha256 of the bytes; null until somebody asks for it
        ("caption_offset", pa.int64()),  # of the JSON sidecar that holds a caption; -1 if none
        ("caption_length", pa.int64()),
        ("given_label", pa.int64()),  # a number from the sidecar; -1 if none
        ("label_name", pa.large_string()),
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
    """

    shard: str
    key: str
    reason: str
    detail: str = ""


@dataclass
class Scan:
    """What one shard holds: a table of :data:`SCAN_SCHEMA`, by offset, and what was wrong."""

    rows: pa.Table
    faults: list[Fault]


@dataclass
class _Sample:
    image: dict[str, Any] | None = None
    sidecar: dict[str, Any] = field(default_factory=dict)
    blamed: bool = False


def scan_tar(path: str) -> Scan:
    """Scan the tar at ``path``; whatever is wrong with it becomes a fault, never an exception."""
    faults: list[Fault] = []
    samples: dict[str, _Sample] = {}
    try:
        with open_stream(path) as stream:
            for member in _members(stream, path, faults):
                _take(stream, member, path, samples, faults)
    except OSError as error:
        faults.append(Fault(path, "", "unreadable_shard", error.strerror or str(error)))
    rows = []
    for key, sample in samples.items():
        if sample.image is not None:
            rows.append(sample.image | sample.sidecar)
        elif not sample.blamed:
            faults.append(Fault(path, key, "no_image", "no member of this key has an image extension"))
    if not samples and not faults:
        faults.append(Fault(path, "", "empty_tar", "no members"))
    return Scan(_table(rows), faults)


def scan_image(path: str, name: str) -> Scan:
    """Scan one image file of an ``images_dir``; its parent folder below the root, if any, is its label.

    Args:
        path: of the file.
        name: the path below ``images_dir``, with ``/``.
    """
    try:
        with open_stream(path) as stream:
            length = stream.seek(0, io.SEEK_END)
            stream.seek(0)
            header = image_header(stream)
    except OSError as error:
        return Scan(_table([]), [Fault(path, name, "unreadable_shard", error.strerror or str(error))])
    if header is None:
        reason = "not_an_image" if length else "empty_member"
        return Scan(_table([]), [Fault(path, name, reason)])
    row = _row(_split(name)[0], 0, length, header)
    parent = name.rpartition("/")[0].rpartition("/")[2]
    return Scan(_table([row | ({"label_name": parent} if parent else {})]), [])


def _members(stream: BinaryIO, path: str, faults: list[Fault]) -> Iterator[tarfile.TarInfo]:
    """The members that are whole; tarfile itself ends in silence at damage, so the end is looked at again."""
    size = stream.seek(0, io.SEEK_END)
    stream.seek(0)
    if size == 0:
        faults.append(Fault(path, "", "empty_tar", "0 bytes"))
        return
    try:
        tar = tarfile.open(fileobj=stream, mode="r:")
    except tarfile.TarError as error:
        cut = "truncated" in str(error)
        faults.append(Fault(path, "", "truncated_tar" if cut else "not_a_tar", str(error)))
        return
    try:
        for member in tar:
            if member.offset_data + member.size > size:
                break
            yield member
    except tarfile.TarError:
        pass
    # A whole archive ends with a block of zeros where the next header would stand.
    stream.seek(tar.offset)
    end = stream.read(tarfile.BLOCKSIZE)
    if len(end) < tarfile.BLOCKSIZE:
        faults.append(Fault(path, "", "truncated_tar", f"the file ends at byte {size} without an end-of-archive mark"))
    elif end.strip(b"\0"):
        faults.append(Fault(path, "", "corrupt_tar", f"no member header at byte {tar.offset}; what follows is lost"))


def _take(
    stream: BinaryIO, member: tarfile.TarInfo, path: str, samples: dict[str, _Sample], faults: list[Fault]
) -> None:
    if member.isdir():
        return
    name = _text(member.name)
    key, extension = _split(name)
    if extension.rpartition(".")[2] not in IMAGE_EXTENSIONS | {"json", "cls"}:
        return
    if key.endswith("/") or not key:
        faults.append(Fault(path, name, "hidden_member", "the name starts with a dot"))
        return
    sample = samples.setdefault(key, _Sample())
    if not member.isreg() or member.issparse():
        sample.blamed = True
        faults.append(Fault(path, name, "not_a_file", "a link or a sparse or special file"))
    elif extension in IMAGE_EXTENSIONS:
        _take_image(stream, member, path, key, sample, faults)
    elif extension in ("json", "cls"):
        _take_sidecar(stream, member, path, key, extension, sample, faults)


def _take_image(
    stream: BinaryIO, member: tarfile.TarInfo, path: str, key: str, sample: _Sample, faults: list[Fault]
) -> None:
    if sample.image is not None:
        faults.append(Fault(path, key, "duplicate_key", f"{_text(member.name)} at byte {member.offset_data}"))
        return
    if member.size == 0:
        sample.blamed = True
        faults.append(Fault(path, key, "empty_member", _text(member.name)))
        return
    span = io.BufferedReader(_Span(stream, member.offset_data, member.size), HEADER_BYTES)
    header = image_header(span)
    if header is None:
        sample.blamed = True
        faults.append(Fault(path, key, "not_an_image", _text(member.name)))
        return
    sample.image = _row(key, member.offset_data, member.size, header)


def _take_sidecar(
    stream: BinaryIO, member: tarfile.TarInfo, path: str, key: str, kind: str, sample: _Sample, faults: list[Fault]
) -> None:
    if member.size > MAX_SIDECAR_BYTES:
        faults.append(Fault(path, key, "bad_sidecar", f"{_text(member.name)} has {member.size} bytes"))
        return
    stream.seek(member.offset_data)
    data = stream.read(member.size)
    try:
        if kind == "cls":
            found = _label(data.decode().strip())
            found = {} if "given_label" in sample.sidecar or "label_name" in sample.sidecar else found
        else:
            found = _from_json(json.loads(data))
            if found.pop("caption", None) is not None:
                found |= {"caption_offset": member.offset_data, "caption_length": member.size}
            if "given_label" in found or "label_name" in found:  # JSON wins over .cls, whichever comes first
                sample.sidecar.pop("given_label", None)
                sample.sidecar.pop("label_name", None)
    except (ValueError, RecursionError) as error:
        faults.append(Fault(path, key, "bad_sidecar", f"{_text(member.name)}: {error}"))
        return
    sample.sidecar |= found


def _from_json(content: Any) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise ValueError("a JSON object is expected")
    found: dict[str, Any] = {}
    digest = next((content[k] for k in ("sha256", "md5", "uid") if content.get(k) not in (None, "")), None)
    if digest is not None:
        found["hash"] = _text(str(digest))
    if isinstance(content.get("caption"), str):
        found["caption"] = True
    for name in ("label", "id"):
        if content.get(name) is not None:
            found |= _label(content[name])
            break
    if isinstance(content.get("label_name"), str):
        found["label_name"] = _text(content["label_name"])
    return found


def _label(value: Any) -> dict[str, Any]:
    """A number is the label itself, text is its name."""
    if isinstance(value, str):
        number = value.removeprefix("-")
        value = int(value) if number.isascii() and number.isdigit() and len(number) < 19 else value
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63:
        return {"given_label": value} if value >= 0 else {}
    return {"label_name": _text(value)} if isinstance(value, str) and value else {}


def _row(key: str, offset: int, length: int, header: ImageHeader) -> dict[str, Any]:
    return {
        "offset": offset, "length": length, "key": key,
        "width": header.width, "height": header.height, "format": header.format,
    }  # fmt: skip


def _table(rows: list[dict[str, Any]]) -> pa.Table:
    blank = dict.fromkeys(("caption_offset", "given_label"), -1) | {"caption_length": 0}
    rows = sorted((blank | row for row in rows), key=lambda row: row["offset"])
    return pa.Table.from_pylist(rows, schema=SCAN_SCHEMA)


def _split(name: str) -> tuple[str, str]:
    """Key and lower-case extension: the base name is cut at its first dot, the folder stays part of the key."""
    folder, slash, base = name.rpartition("/")
    stem, _, extension = base.partition(".")
    return folder + slash + stem, extension.lower()


def _text(name: str) -> str:
    """Names are bytes in a tar; what is not UTF-8 is replaced, since Arrow holds nothing else."""
    return name.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


class _Span(io.RawIOBase):
    """A member as a stream of its own: reads stop at its end."""

    def __init__(self, stream: BinaryIO, start: int, length: int) -> None:
        super().__init__()
        self._stream, self._start, self._length, self._place = stream, start, length, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._length}[whence]
        self._place = max(0, base + offset)
        return self._place

    def readinto(self, buffer: Any) -> int:
        count = min(len(buffer), max(0, self._length - self._place))
        self._stream.seek(self._start + self._place)
        data = self._stream.read(count)
        buffer[: len(data)] = data
        self._place += len(data)
        return len(data)
