"""The lock file: for each address of weights the revision, files and hashes that were fetched."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from radioplat.common.atomic_files import written_aside
from radioplat.errors import SpecError

NAME = "weights.lock.json"
VARIABLE = "RADIOPLAT_WEIGHTS_LOCK"


@dataclass(frozen=True)
class Pin:
    """One file: its hash in hexadecimal digits, and its size."""

    sha256: str
    bytes: int


@dataclass(frozen=True)
class Entry:
    """The weights that an address stands for.

    Attributes:
        repository: of the Hugging Face hub; empty for a file of a web server.
        revision: commit of the repository.
        value: the file that a spec means; empty for the folder of the repository.
        files: pins by name.
    """

    repository: str = ""
    revision: str = ""
    value: str = ""
    files: dict[str, Pin] = field(default_factory=dict)


def lock_path(path: str | Path | None = None) -> Path:
    """Return the path of the lock file: given, by the variable RADIOPLAT_WEIGHTS_LOCK, or in the current folder."""
    return Path(path or os.environ.get(VARIABLE) or NAME)


def read_lock(path: Path) -> dict[str, Entry]:
    """Return the entries by address; none if there is no such file.

    Raises:
        SpecError: it cannot be read.
    """
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
        return {address: _entry(fields) for address, fields in tree["weights"].items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        hint = "Remove it, and run `radioplat weights fetch` for the addresses that the spec names."
        raise SpecError(f"this lock file cannot be read: {error}", where=str(path), hint=hint) from None


def add_to_lock(path: Path, address: str, entry: Entry) -> None:
    """Add or replace one entry, beside those that other processes have added meanwhile."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(path.parent):
        entries = read_lock(path) | {address: entry}
        tree = {name: dataclasses.asdict(each) for name, each in sorted(entries.items())}
        with written_aside(path) as part:
            part.write_text(json.dumps({"weights": tree}, indent=1) + "\n", encoding="utf-8")


@contextlib.contextmanager
def exclusive(folder: Path, wait: bool = True) -> Iterator[None]:
    """Keep other processes that call this for ``folder`` waiting until the block ends; it leaves no file.

    Raises:
        BlockingIOError: another process is in such a block, and ``wait`` is false.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    finally:
        os.close(descriptor)


def _entry(fields: dict[str, Any]) -> Entry:
    files = {name: Pin(**pin) for name, pin in fields["files"].items()}
    if not files or any(Path(name).is_absolute() or ".." in Path(name).parts for name in files):
        raise ValueError(f"files are named inside of a repository, not {', '.join(files) or 'none'}")
    return Entry(**{**fields, "files": files})
