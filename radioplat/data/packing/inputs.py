"""List and examine the images to pack, from a folder or a CSV table."""

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
_PATHS = ("path", "image", "image_path", "file")  # accepted names of the table's path column
_AHEAD = 256  # files examined together


@dataclass(frozen=True)
class Entry:
    """One requested image: file, class name and caption; label and caption are empty if there is none."""

    path: str
    label: str = ""
    caption: str = ""


@dataclass(frozen=True)
class ExaminedFile:
    """Result of examining an entry's file.

    Attributes:
        size: bytes.
        mtime_ns: modification time; an unchanged file is not examined again.
        sha256: of the bytes, hex; empty for a bad image.
        extension: by the content, not by the name.
        reason, detail: why the image cannot be packed; empty if it can.
    """

    path: str
    size: int = 0
    mtime_ns: int = 0
    sha256: str = ""
    extension: str = ""
    reason: str = ""
    detail: str = ""


def list_entries(source: str | Path) -> list[Entry]:
    """List the images of a folder (sub-folders are classes), or of a CSV file with a header.

    A CSV file has a column ``path`` (or ``image``), relative to the file itself, and optionally ``label``, ``caption``.

    Raises:
        DataError: ``source`` does not exist, contains no image, or the table has no such column.
    """
    source = Path(source)
    if source.is_file():
        return _from_table(source)
    (folder,) = list_shards(SplitConfig(images_dir=str(source)), "FOLDER")
    names = [file.name for file in folder.files]
    return [Entry(f"{folder.root}/{name}", name.rpartition("/")[0].rpartition("/")[2]) for name in names]


def _from_table(source: Path) -> list[Entry]:
    hint = f"Name a column {_PATHS[0]}; label and caption are optional."
    try:
        with source.open(newline="", encoding="utf-8-sig") as file:
            table = csv.DictReader(file)
            column = next((name for name in _PATHS if name in (table.fieldnames or ())), None)
            if column is None:
                raise DataError("this is no table of images: it has no path column", where=str(source), hint=hint)
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
) -> list[ExaminedFile]:
    """Hash each file and check that it is an image; results are in the order of ``entries``.

    Args:
        notes: a file of results, one JSON line for each file; an interrupted run resumes from it, and an unchanged
            file is not read again.
        verify: decode each image, not only its header.
        progress: called with (files done, files in all).
    """
    known = _known(notes)
    results: list[ExaminedFile] = []
    waiting: Iterator[str] = iter([entry.path for entry in entries])
    with notes.open("a", encoding="utf-8") as file, ThreadPoolExecutor(workers) as pool:
        while chunk := list(islice(waiting, _AHEAD)):
            for result in pool.map(lambda path: _examine(path, known.get(path), verify), chunk):
                results.append(result)
                if result is not known.get(result.path):
                    file.write(json.dumps(asdict(result)) + "\n")
            file.flush()
            if progress:
                progress(len(results), len(entries))
    return results


def _known(notes: Path) -> dict[str, ExaminedFile]:
    known = {}
    for line in notes.read_text(encoding="utf-8").splitlines() if notes.exists() else ():
        try:
            result = ExaminedFile(**json.loads(line))
        except (ValueError, TypeError):  # the incomplete last line of an interrupted run
            continue
        known[result.path] = result
    return known


def _examine(path: str, known: ExaminedFile | None, verify: bool) -> ExaminedFile:
    try:
        state = Path(path).stat()
        if known and (known.size, known.mtime_ns) == (state.st_size, state.st_mtime_ns):
            return known
        data = Path(path).read_bytes()
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        return ExaminedFile(path, reason="missing" if missing else "unreadable", detail=error.strerror or str(error))
    header = image_header(data)
    if header is None or header.format not in EXTENSIONS:
        reason = ("not_an_image" if data else "empty_file") if header is None else "unknown_format"
        return ExaminedFile(path, len(data), state.st_mtime_ns, reason=reason, detail=header.format if header else "")
    try:
        if verify:
            decode_rgb(data)
    except BadSample as bad:
        return ExaminedFile(path, len(data), state.st_mtime_ns, reason=bad.reason, detail=bad.detail)
    digest = hashlib.sha256(data).hexdigest()
    return ExaminedFile(path, len(data), state.st_mtime_ns, digest, EXTENSIONS[header.format])
