"""One thing in a lineage, its files, and the things that it was made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from radioplat.common.hashing import file_hash

NOT_RECORDED = "not recorded by the version that wrote it"


class Kind(Enum):
    """The kind of a thing in a lineage."""

    results = "results folder"
    engine = "engine"
    onnx = "ONNX file"
    weights = "weights"
    student = "student"
    run = "run"
    teacher = "teacher"
    images = "images"


class State(Enum):
    """A file beside the hash that is recorded of it."""

    same = "as recorded"
    changed = "changed since"
    absent = "not there"
    measured = "no earlier hash is recorded"
    unrecorded = NOT_RECORDED
    unread = "not read"


@dataclass(frozen=True)
class FileRecord:
    """One file.

    Attributes:
        path: where it is, or was.
        sha256: that is recorded, or else that of now; empty if there is neither.
        state: see :class:`State`.
        by: the file that records the hash; empty if none does.
    """

    path: str
    sha256: str
    state: State
    by: str = ""

    @property
    def name(self) -> str:
        """Its name without folders."""
        return Path(self.path).name


@dataclass
class Node:
    """One thing in a lineage.

    Attributes:
        id: different for each.
        title: a few words for lists; the kind comes before it.
        path: of the file or folder; empty for one that was not located.
        files: with their hashes.
        facts: further values, for JSON.
        notes: what is not known of it, a sentence each.
        made_from: the things that it was made of, in order.
    """

    id: str
    kind: Kind
    title: str
    path: str = ""
    files: list[FileRecord] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    made_from: list[Node] = field(default_factory=list)

    def walk(self, teachers: bool = True) -> Iterator[Node]:
        """Yield this node and all that it was made of, each once, the artifact first.

        Args:
            teachers: False: without them, and without what they were made of.
        """
        done: set[str] = set()
        waiting = [self]
        while waiting:
            node = waiting.pop()
            if node.id not in done and (teachers or node.kind is not Kind.teacher):
                done.add(node.id)
                yield node
                waiting += reversed(node.made_from)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON; what it was made of by id."""
        return {
            "kind": self.kind.value,
            "title": self.title,
            "path": self.path,
            "files": [
                {"path": file.path, "sha256": file.sha256, "state": file.state.value, "recorded_by": file.by}
                for file in self.files
            ],
            "facts": self.facts,
            "notes": self.notes,
            "made_from": [node.id for node in self.made_from],
        }


def checked(path: Path, sha256: str, by: str, verify: bool = True) -> FileRecord:
    """Compare a file with the hash that is recorded of it.

    Args:
        by: the file with the record.
        verify: False: the file is not read.
    """
    if not path.is_file():
        return FileRecord(str(path), sha256, State.absent, by)
    if not verify:
        return FileRecord(str(path), sha256, State.unread, by)
    return FileRecord(str(path), sha256, State.same if file_hash(path) == sha256 else State.changed, by)


def all_checked(home: Path, hashes: Mapping[str, str], by: str, verify: bool = True) -> list[FileRecord]:
    """Compare files in a folder with recorded hashes, by name."""
    return [checked(home / name, sha256, by, verify) for name, sha256 in hashes.items()]


def measured(path: Path, verify: bool = True) -> FileRecord:
    """Return a file of which nothing records a hash, with that of now."""
    return FileRecord(str(path), file_hash(path) if verify else "", State.measured if verify else State.unread)
