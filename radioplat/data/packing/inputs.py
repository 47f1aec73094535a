"""What is to be packed: images of a folder, or of a table, looked at one by one."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

from radioplat.data.images.decode import BadSample, decode_rgb
from radioplat.data.images.headers import image_header
from radioplat.data.scan.sources import list_shards
from radioplat.errors import DataError
from radioplat.spec.schema.dataset import SplitConfig

EXTENSIONS = {"JPEG": "jpg", "PNG": "png", "GIF": "gif", "WEBP": "webp", "BMP": "bmp", "TIFF": "tiff"}
_PATHS = ("path", "image", "image_path", "file")  # what the table's column of files may be called
_AHEAD = 256  # files that are looked at together


@dataclass(frozen=True)
class Entry:
    """One image that was asked for: its file, its class's name and its caption, each empty where there is none."""

    path: str
    label: str = ""
    caption: str = ""


@dataclass(frozen=True)
class Finding:
    """What is known of an entry's file.

    Attributes:
        size: bytes.
        mtime_ns: when it was last written, so that it need not be looked at again.
        sha256: of the bytes, hex; empty for a bad image.
        extension: by the content, not by the name.
        reason, detail: why it cannot be packed; empty where it can.
    """

    path: str
    size: int = 0
    mtime_ns: int = 0
    sha256: str = ""
    extension: str = ""
    reason: str = ""
    detail: str = ""


def list_entries(source: str | Path) -> list[Entry]:
    """The images of a folder (sub-folders are classes), or of a CSV file with a header.

    A CSV has a column ``path`` (or ``image``), relative to the file itself, and may have ``label`` and ``caption``.

    Raises:
        DataError: neither exists, the folder holds no image, or the table has no such column.
    """
    source = Path(source)
    if source.is_file():
        return _from_table(source)
    (found,) = list_shards(SplitConfig(images_dir=str(source)), "FOLDER")
    names = [file.name for file in found.files]
    return [Entry(f"{found.root}/{name}", name.rpartition("/")[0].rpartition("/")[2]) for name in names]


def _from_table(source: Path) -> list[Entry]:
    hint = f"Name a column {_PATHS[0]}; label and caption are optional."
    try:
        with source.open(newline="", encoding="utf-8-sig") as file:
            table = csv.DictReader(file)
            column = next((name for name in _PATHS if name in (table.fieldnames or ())), None)
            if column is None:
                raise DataError("this is no table of images: it names no column of files", where=str(source), hint=hint)
            entries = [
                Entry(str(source.absolute().parent / row[column]), row.get("label") or "", row.get("caption") or "")
                for row in table
                if row[column]
            ]
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"this is no table of images: {error}", where=str(source), hint=hint) from None
    if not entries:
        raise DataError("the table names no image", where=str(source))
    return entries


def examine(
    entries: list[Entry], notes: Path, verify: bool, workers: int, progress: Callable[[int, int], None] | None = None
) -> list[Finding]:
    """Hash each file and see that it is an image, in the order of ``entries``.

    Args:
        notes: a file that keeps what was found, one JSON line a file; who is killed goes on from there, and a file
            that has not changed is not read again.
        verify: decode each image, not only its header.
        progress: called with (files done, files in all).
    """
    known = _known(notes)
    findings: list[Finding] = []
    waiting: Iterator[str] = iter([entry.path for entry in entries])
    with notes.open("a", encoding="utf-8") as file, ThreadPoolExecutor(workers) as pool:
        while chunk := list(islice(waiting, _AHEAD)):
            for finding in pool.map(lambda path: _examine(path, known.get(path), verify), chunk):
                findings.append(finding)
                if finding is not known.get(finding.path):
                    file.write(json.dumps(asdict(finding)) + "\n")
            file.flush()
            if progress:
                progress(len(findings), len(entries))
    return findings


def _known(notes: Path) -> dict[str, Finding]:
    known = {}
    for line in notes.read_text(encoding="utf-8").splitlines() if notes.exists() else ():
        try:
            finding = Finding(**json.loads(line))
        except (ValueError, TypeError):  # the last line of a run that was killed
            continue
        known[finding.path] = finding
    return known


def _examine(path: str, known: Finding | None, verify: bool) -> Finding:
    try:
        state = Path(path).stat()
        if known and (known.size, known.mtime_ns) == (state.st_size, state.st_mtime_ns):
            return known
        data = Path(path).read_bytes()
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        return Finding(path, reason="missing" if missing else "unreadable", detail=error.strerror or str(error))
    header = image_header(data)
    if header is None or header.format not in EXTENSIONS:
        reason = ("not_an_image" if data else "empty_file") if header is None else "unknown_format"
        return Finding(path, len(data), state.st_mtime_ns, reason=reason, detail=header.format if header else "")
    try:
        if verify:
            decode_rgb(data)
    except BadSample as bad:
        return Finding(path, len(data), state.st_mtime_ns, reason=bad.reason, detail=bad.detail)
    digest = hashlib.sha256(data).hexdigest()
    return Finding(path, len(data), state.st_mtime_ns, digest, EXTENSIONS[header.format])
