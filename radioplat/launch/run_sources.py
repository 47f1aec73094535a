"""``sources.json``: the SHA-256 of the weights that a run starts from and is taught by.

A start lists the files with their sizes and times, and a thread computes the hashes while the run goes on: the first
step does not wait for gigabytes. The next start goes on where a killed one was, and reads no file again that is the
same by path, size and time. With ``train.checkpoint_dir`` the mirror has a copy, for a start on another machine.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from radioplat.common.hashing import file_hash
from radioplat.data.storage.files import write_file
from radioplat.design.run import Run
from radioplat.errors import Problem, RadioplatError
from radioplat.models.source import source_files
from radioplat.spec.loading.weights_fields import weights_fields
from radioplat.spec.weights.local import address_of
from radioplat.tracking.results import write_atomic
from radioplat.training.checkpoints.mirror import FIELD, Mirror, read_whole, reason_of
from radioplat.training.checkpoints.resume import mirror_of

NAME, SCHEMA = "sources.json", 1
START_FIELDS = ("model.backbone.pretrained_backbone_path", "train.pretrained_model_path")
RESUMED = "train.resume_training_checkpoint_path"
_PIECE = 1 << 24  # bytes


@dataclass(frozen=True)
class SourceFile:
    """One file: its size and time when the run started, and its SHA-256 (hex), empty until it is computed."""

    bytes: int
    mtime_ns: int
    sha256: str = ""


@dataclass(frozen=True)
class RunSource:
    """Weights that a run reads.

    Attributes:
        where: field of the spec that names them.
        teacher: its name; empty for weights that the student starts from.
        path: absolute.
        address: that they were fetched from; empty if they were not.
        from_step: the first step that they were read for.
        files: by name.
        problem: why there is no hash; empty if there is one, or will be.
    """

    where: str
    teacher: str
    path: str
    address: str
    from_step: int
    files: dict[str, SourceFile] = field(default_factory=dict)
    problem: str = ""

    @property
    def hashes(self) -> dict[str, str]:
        """SHA-256 of each file by name; those that are not computed are left out."""
        return {name: file.sha256 for name, file in self.files.items() if file.sha256}

    @property
    def is_open(self) -> bool:
        """Whether hashes remain to be computed."""
        return not self.problem and len(self.hashes) < len(self.files)


def read_run_sources(folder: Path) -> list[RunSource]:
    """Return the record in a run's folder; empty if an earlier version wrote the run, or it cannot be read."""
    try:
        return _parsed((folder / NAME).read_bytes())
    except OSError:
        return []


def _parsed(text: bytes) -> list[RunSource]:
    try:
        return [
            RunSource(**entry | {"files": {name: SourceFile(**file) for name, file in entry["files"].items()}})
            for entry in json.loads(text)["sources"]
        ]
    except (ValueError, KeyError, TypeError, AttributeError):
        return []


def changed_sources(folder: Path, step: int) -> Iterator[Problem]:
    """Yield a problem for each file of weights that is another one than the run in ``folder`` read.

    A file of the recorded size and time counts as the same. Files that are not there are reported by any start.

    Args:
        step: the step that the weights are needed for again; from step 1 on the student has those of a checkpoint.
    """
    entries = [entry for entry in read_run_sources(folder) if entry.from_step <= step and (entry.teacher or not step)]
    for entry in {entry.where: entry for entry in sorted(entries, key=lambda each: each.from_step)}.values():
        path = Path(entry.path)
        home = path.parent if path.is_file() else path
        for name, known in entry.files.items():
            file = home / name
            if known.sha256 and file.is_file():
                state = file.stat()
                same = (state.st_size, state.st_mtime_ns) == (known.bytes, known.mtime_ns)
                if not same and (state.st_size != known.bytes or file_hash(file) != known.sha256):
                    hint = f"Put back the file whose SHA-256 is {known.sha256}."
                    yield Problem(f"{file} is another file than the run read", entry.where, hint)


def recover_sources(folder: Path, mirror: Mirror, replace_own: bool) -> None:
    """Copy the record from the mirror, if a run's folder has none.

    Args:
        replace_own: also if it has one: the mirror has later steps of the run.

    Raises:
        RadioplatError: it cannot be read or written.
    """
    if (folder / NAME).exists() and not replace_own:
        return
    try:
        content = read_whole(f"{mirror.folder}/{NAME}")
        if _parsed(content):  # else it is torn, and says nothing
            write_atomic(folder / NAME, content.decode())
    except FileNotFoundError:  # an earlier version wrote the mirror
        return
    except OSError as error:
        raise RadioplatError(f"{NAME} cannot be copied from there: {reason_of(error)}", where=FIELD) from None


class RunSources:
    """A thread that writes ``sources.json`` of a run, while the block runs.

    A block that ends well waits for it; one that raises does not, and the next start goes on.

    Args:
        checkpoint: that the run goes on from; None for a new run.
        start: its step.
    """

    def __init__(self, run: Run, checkpoint: Path | None, start: int) -> None:
        self._path, self._mirror = run.folder / NAME, mirror_of(run.spec, run.task)
        self._entries = _merged(read_run_sources(run.folder), list(_wanted(run, checkpoint, start)), start)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._hash, name="hashes of weights", daemon=True)

    def __enter__(self) -> RunSources:
        self._write()
        self._thread.start()
        return self

    def __exit__(self, kind: object, *exception: object) -> None:
        if kind is not None:
            self._stop.set()
        self._thread.join()

    def _hash(self) -> None:
        for number, entry in enumerate(self._entries):
            if entry.is_open:
                done = _hashed(entry, self._stop)
                if done is None:
                    return
                self._entries[number] = done
                self._write()
        self._entries = _without_repeats(self._entries)
        self._write()

    def _write(self) -> None:
        content = json.dumps({"schema": SCHEMA, "sources": [asdict(entry) for entry in self._entries]}, indent=1) + "\n"
        with contextlib.suppress(OSError):  # a full disk: the next start writes it
            write_atomic(self._path, content)
        if self._mirror is not None:
            with contextlib.suppress(OSError):  # the next write or start tries again
                write_file(f"{self._mirror.folder}/{NAME}", content.encode())


def _wanted(run: Run, checkpoint: Path | None, start: int) -> Iterator[RunSource]:
    """Yield what this start reads, without hashes."""
    names = {f"{teacher.where}.": teacher.name for teacher in run.frozen_teachers}
    for each in weights_fields(run.spec):
        teacher = next((name for where, name in names.items() if each.path.startswith(where)), "")
        if each.value and (teacher or (each.path in START_FIELDS and start == 0)):
            yield _source(each.path, teacher, Path(each.value), start)
    if checkpoint is not None and checkpoint.parent.resolve() != run.folder.resolve():
        yield _source(RESUMED, "", checkpoint, start)


def _source(where: str, teacher: str, path: Path, start: int) -> RunSource:
    known = RunSource(where, teacher, str(path.absolute()), address_of(str(path)), start)
    home = path.parent if path.is_file() else path
    try:
        states = {file.relative_to(home).as_posix(): file.stat() for file in source_files(path)}
    except OSError as error:
        return replace(known, problem=f"it cannot be read: {error.strerror}")
    files = {name: SourceFile(state.st_size, state.st_mtime_ns) for name, state in states.items()}
    return replace(known, files=files, problem="" if files else "there is no file")


def _merged(before: Sequence[RunSource], wanted: Sequence[RunSource], start: int) -> list[RunSource]:
    """Return the record for a start: what earlier steps read, and what those from ``start`` on read."""
    entries = [entry for entry in before if entry.from_step < start]
    for entry in wanted:
        known = [one for one in before if _reads(one) == _reads(entry)]
        same = next((one for one in reversed(known) if one.from_step <= start and _is_same(one, entry)), None)
        if same is None:
            entries.append(entry)
        elif same not in entries:
            entries.append(same)
    return entries


def _is_same(one: RunSource, other: RunSource) -> bool:
    sizes = [{name: (file.bytes, file.mtime_ns) for name, file in each.files.items()} for each in (one, other)]
    return one.path == other.path and sizes[0] == sizes[1] and not one.problem


def _hashed(entry: RunSource, stop: threading.Event) -> RunSource | None:
    """Return the entry with its hashes; None if it is to stop."""
    path, files = Path(entry.path), dict(entry.files)
    home = path.parent if path.is_file() else path
    for name, known in entry.files.items():
        try:
            digest = _sha256(home / name, stop)
            state = (home / name).stat()
        except OSError as error:
            return replace(entry, problem=f"{name} cannot be read: {error.strerror}")
        if digest is None:
            return None
        if (state.st_size, state.st_mtime_ns) != (known.bytes, known.mtime_ns):
            return replace(entry, problem=f"{name} was changed before its hash was computed")
        files[name] = replace(known, sha256=digest)
    return replace(entry, files=files)


def _sha256(path: Path, stop: threading.Event) -> str | None:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            if stop.is_set():
                return None
            digest.update(piece)
    return digest.hexdigest()


def _without_repeats(entries: Sequence[RunSource]) -> list[RunSource]:
    """Leave out an entry with the hashes of the one before it: files that were copied or touched."""
    kept: list[RunSource] = []
    for entry in entries:
        place = next((i for i, one in reversed(list(enumerate(kept))) if _reads(one) == _reads(entry)), None)
        if place is not None and entry.hashes and entry.hashes == kept[place].hashes:
            kept[place] = replace(entry, from_step=kept[place].from_step)
        else:
            kept.append(entry)
    return kept


def _reads(entry: RunSource) -> tuple[str, str]:
    return entry.where, entry.teacher
