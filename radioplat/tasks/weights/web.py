"""A file of a web server, resumed where an earlier attempt ended."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import requests

from radioplat.common.hashing import file_hash
from radioplat.errors import WeightsError
from radioplat.spec.weights.address import Address
from radioplat.spec.weights.local import folder_of
from radioplat.spec.weights.lock import Entry, Pin, exclusive

Progress = Callable[[int, int], None]  # bytes done, bytes in all
_CHUNK, _TIMEOUT_S = 1 << 16, 60.0  # bytes that a broken connection loses; seconds without an answer


def fetch_file(address: Address, digest: str, progress: Progress | None = None) -> Entry:
    """Download a file, unless it is here.

    Args:
        digest: its sha256 in hexadecimal digits.

    Raises:
        WeightsError: see :func:`radioplat.tasks.weights.fetch.fetch`.
    """
    where, digest = address.text, digest.lower()
    if len(digest) != 64 or set(digest) - set("0123456789abcdef"):
        hint = "Give --sha256 HEX, 64 hexadecimal digits: sha256sum FILE prints it."
        raise WeightsError("a file of a web server needs its hash", where=where, hint=hint)
    name = address.url.rpartition("/")[2]
    file = folder_of(Entry(files={name: Pin(digest, 0)})) / name
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        with exclusive(file.parent, wait=False):
            if not file.is_file() or file_hash(file) != digest:
                _replace(file, address, digest, progress)
    except BlockingIOError:
        hint = "Wait for it, and run the same command again."
        raise WeightsError("another process downloads this file", where=where, hint=hint) from None
    return Entry(value=name, files={name: Pin(digest, file.stat().st_size)})


def _replace(file: Path, address: Address, digest: str, progress: Progress | None) -> None:
    """Download to a file beside ``file``, compare, and rename it to ``file``."""
    part = file.with_name(f"{file.name}.part")
    try:
        _download(address.url, part, progress)
    except requests.RequestException as error:
        hint = f"Run the same command again: it continues. Without network, put the file at {file}."
        raise WeightsError(f"the download failed: {_reason(error)}", where=address.text, hint=hint) from None
    if (digits := file_hash(part)) != digest:
        part.unlink()
        hint = "Compare the hash with its source; an error page of the server is no weights, either."
        raise WeightsError(f"the file's sha256 is {digits}, not {digest}", where=address.text, hint=hint)
    part.replace(file)


def _download(url: str, part: Path, progress: Progress | None) -> None:
    """Write the rest of the file to ``part``."""
    start = part.stat().st_size if part.exists() else 0
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
    with requests.get(url, headers=headers, stream=True, timeout=_TIMEOUT_S) as answer:
        if answer.status_code == requests.codes.requested_range_not_satisfiable:
            return  # it is whole
        answer.raise_for_status()
        if answer.status_code != requests.codes.partial_content:
            start = 0
        total = start + int(answer.headers.get("Content-Length") or 0)
        with part.open("ab" if start else "wb") as opened:
            for piece in answer.iter_content(_CHUNK):
                opened.write(piece)
                start += len(piece)
                if progress:
                    progress(start, total)
    if start < total:
        raise requests.ConnectionError(f"the connection ended after {start:,} of {total:,} bytes")


def _reason(error: requests.RequestException) -> str:
    if error.response is not None:
        return f"the server answered {error.response.status_code} {error.response.reason}"
    return " ".join(str(error).split())[:200]
