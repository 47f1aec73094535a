"""``versions.json``: the schema of each record in a folder, and the version of radioplat that wrote there last.

A start checks it before it writes anything: records of a newer version are refused, older ones are brought up. A folder
without the file was written before it existed, so all its records have schema 1. Files that have a schema number of
their own are not listed: checkpoints, ``windows.jsonl``, the index, features, target statistics, ``compress.json``,
``pipeline.json``.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from radioplat import __version__
from radioplat.common.atomic_files import sync_folder
from radioplat.errors import Problem, RadioplatError
from radioplat.tracking.results import write_atomic

NAME = "versions.json"
_PARTIAL, _READY = ".upgrade.partial", ".upgrade.ready"  # folders of an upgrade, before and after it counts
_FILES, _REMOVED = "files", "removed.json"  # in such a folder
Upgrade = Callable[[Path], None]


@dataclass(frozen=True)
class RecordKind:
    """One kind of record.

    Attributes:
        files: patterns of its files, below the folder of ``versions.json``.
        schema: increased when an older version would misread what this one writes, or this one what that one wrote.
        upgrades: by the schema that each starts from: a function that brings the files up by one schema. It gets a
            folder with copies of the record's files, and may rewrite, add and remove files there.
    """

    files: tuple[str, ...]
    schema: int = 1
    upgrades: Mapping[int, Upgrade] = field(default_factory=dict)


KINDS = {
    "status": RecordKind(("status.json",)),
    "attempts": RecordKind(("attempts.jsonl",)),
    "accounts": RecordKind(("accounts.jsonl", "goodput.json", "teacher_cost.json")),
    "run_data": RecordKind(("data/*.npy",)),
    "ledger": RecordKind(
        ("consumed-a*.parquet", "abandoned-a*.parquet", "rejected-a*.parquet", "rejects.parquet", "moving.json")
    ),
    "index_parts": RecordKind(("part-*",)),
    "sweep": RecordKind(("plan.json", "clock.json", "trial_*/trial.json", "trial_*/told.jsonl")),
}
RUN = ("status", "attempts", "accounts", "run_data")  # kinds in the task folder of a run; its ledger is a folder below


class NewerRecord(RadioplatError):
    """A newer version of radioplat wrote a record, and this one cannot read it."""


@dataclass(frozen=True)
class Versions:
    """The content of ``versions.json``.

    Attributes:
        radioplat: the version that wrote last; empty if that is not known.
        records: schemas by kind of record.
    """

    radioplat: str = ""
    records: dict[str, int] = field(default_factory=dict)

    def schema(self, kind: str) -> int:
        """Return the schema of a kind of record; 1 if the file does not name it."""
        return self.records.get(kind, 1)

    def to_json(self) -> str:
        """Return the text of the file."""
        return json.dumps({"radioplat": self.radioplat, "records": self.records}, indent=1) + "\n"

    def write(self, folder: Path) -> None:
        """Write the file in ``folder``, atomically."""
        write_atomic(Path(folder) / NAME, self.to_json())

    @classmethod
    def from_json(cls, text: str | bytes, where: str) -> Versions:
        """Read the text of the file.

        Args:
            where: its path, for the message.

        Raises:
            RadioplatError: it is damaged.
        """
        try:
            content = json.loads(text)
            wrote, records = content["radioplat"], content["records"]
            whole = isinstance(wrote, str) and all(type(schema) is int for schema in records.values())
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            whole = False
        if not whole:
            hint = "Restore it. If no other version of radioplat wrote in this folder, remove it."
            raise RadioplatError("is damaged, so the schemas of the records here are not known", where=where, hint=hint)
        return cls(wrote, dict(records))


def read_versions(folder: Path) -> Versions:
    """Read ``versions.json`` in ``folder``; empty if there is none.

    Raises:
        RadioplatError: it is damaged.
    """
    path = Path(folder) / NAME
    try:
        text = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return Versions()
    return Versions.from_json(text, str(path))


def newer_record(where: str, record: str, schema: object, ours: object, wrote: str = "") -> NewerRecord:
    """Return the error for one record that a newer version wrote.

    Args:
        where: the file that names the schema.
        record: the record, or the field with the schema.
        schema: of the record.
        ours: the newest schema that this version reads.
        wrote: the version of radioplat that wrote it; empty if that is not known.
    """
    return NewerRecord(_newer(where, record, schema, ours, wrote))


def _newer(where: str, record: str, schema: object, ours: object, wrote: str) -> Problem:
    by = f"radioplat {wrote}" if wrote else "a newer version of radioplat"
    return Problem(
        f"{record} has schema {schema}, written by {by}; radioplat {__version__} reads up to schema {ours}",
        where,
        f"Use {f'radioplat {wrote}' if wrote else 'that version'} or a newer one, or choose another folder. "
        "Nothing was changed.",
    )


def check_newer(folder: Path) -> None:
    """Check that no record in ``folder`` is of a newer version.

    Raises:
        NewerRecord: with one problem for each such record; a kind that this version does not know is one, too.
        RadioplatError: ``versions.json`` is damaged.
    """
    refuse_newer(read_versions(folder), str(Path(folder) / NAME))


def refuse_newer(versions: Versions, where: str) -> None:
    """Check that none of ``versions`` is newer than this version's.

    Args:
        where: path of their file, for the message.

    Raises:
        NewerRecord: as :func:`check_newer`.
    """
    problems = []
    for kind, schema in versions.records.items():
        ours = KINDS[kind].schema if kind in KINDS else 0
        if schema > ours:
            name = f"record {kind}" + (f" ({', '.join(KINDS[kind].files)})" if ours else ", unknown here,")
            problems.append(_newer(where, name, schema, ours, versions.radioplat))
    if problems:
        raise NewerRecord(*problems)


def check_readable(folder: Path) -> None:
    """Check that all records in ``folder`` are of this version's schemas; for commands that only read.

    Raises:
        NewerRecord: as :func:`check_newer`.
        RadioplatError: a record is of an older schema, or ``versions.json`` is damaged.
    """
    check_newer(folder)
    old = [f"{kind} of schema {schema}" for kind, schema in older_records(folder).items()]
    if is_unfinished(folder):
        old = ["an unfinished upgrade"]
    if old:
        hint = f"Run `radioplat migrate run {folder}`; a start of the run does the same."
        raise RadioplatError(f"an older version of radioplat wrote it: {', '.join(old)}", where=str(folder), hint=hint)


def older_records(folder: Path) -> dict[str, int]:
    """Return the kinds of records in ``folder`` that have an older schema, with that schema.

    Raises:
        RadioplatError: ``versions.json`` is damaged.
    """
    folder, versions = Path(folder), read_versions(folder)
    return {
        kind: versions.schema(kind)
        for kind, known in KINDS.items()
        if versions.schema(kind) < known.schema and _has(folder, known)
    }


def known_records(folder: Path) -> dict[str, int]:
    """Return the schema of each kind of record that ``folder`` contains, also of kinds that this version does not know.

    Raises:
        RadioplatError: ``versions.json`` is damaged.
    """
    versions = read_versions(folder)
    present = {kind: versions.schema(kind) for kind, known in KINDS.items() if _has(Path(folder), known)}
    return present | {kind: schema for kind, schema in versions.records.items() if kind not in KINDS}


def is_unfinished(folder: Path) -> bool:
    """Return True if a process was killed while it brought the records of ``folder`` up; the next call goes on."""
    return (Path(folder) / _READY).is_dir()


def _has(folder: Path, kind: RecordKind) -> bool:
    return any(True for pattern in kind.files for _ in folder.glob(pattern))


def prepare_folder(folder: Path, kinds: Iterable[str]) -> dict[str, int]:
    """Make ``folder`` ready to be written by this version: bring older records up, and write ``versions.json``.

    Only one process may do so at a time.

    Args:
        kinds: of the records that the caller will write.

    Returns:
        The records that were brought up, with their former schemas.

    Raises:
        NewerRecord: as :func:`check_newer`; nothing is changed.
        RadioplatError: ``versions.json`` is damaged, or there is no way from an older schema to this one.
    """
    folder = Path(folder)
    _finish(folder)
    check_newer(folder)
    upgraded = bring_up(folder)
    before = read_versions(folder)
    records = before.records | {kind: KINDS[kind].schema for kind in kinds}
    now = Versions(__version__, dict(sorted(records.items())))
    if now != before:
        now.write(folder)
    return upgraded


def bring_up(folder: Path) -> dict[str, int]:
    """Bring the older records in ``folder`` up to this version's schemas, all or none; do nothing if there is none.

    The new files are written to a hidden folder, whose rename decides: a process that is killed before it leaves the
    old records as they were; after it, the next call goes on. ``versions.json`` is replaced before the other files, so
    that an older version refuses the folder in between.

    Returns:
        The records that were brought up, with their former schemas.

    Raises:
        NewerRecord: as :func:`check_newer`; nothing is changed.
        RadioplatError: there is no way from one of these schemas to this version's.
    """
    folder = Path(folder)
    _finish(folder)
    check_newer(folder)
    older = older_records(folder)
    if not older:
        return {}
    partial = folder / _PARTIAL
    files = partial / _FILES
    files.mkdir(parents=True)
    try:
        names = {path.relative_to(folder) for kind in older for path in _files_of(folder, kind)}
        for name in names:
            (files / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(folder / name, files / name)
        for kind, schema in older.items():
            _upgrade(folder, files, kind, schema)
        left = {path.relative_to(files) for path in files.rglob("*") if path.is_file()}
        removed = sorted(str(name) for name in names - left)
        versions = read_versions(folder)
        records = versions.records | {kind: KINDS[kind].schema for kind in older}
        Versions(__version__, dict(sorted(records.items()))).write(files)
        write_atomic(partial / _REMOVED, json.dumps(removed))
        _sync(partial)
        partial.rename(folder / _READY)
        sync_folder(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    _finish(folder)
    return older


def _files_of(folder: Path, kind: str) -> list[Path]:
    return [path for pattern in KINDS[kind].files for path in folder.glob(pattern) if path.is_file()]


def _upgrade(folder: Path, files: Path, kind: str, schema: int) -> None:
    """Bring the copies of one record up, schema by schema."""
    for number in range(schema, KINDS[kind].schema):
        step = KINDS[kind].upgrades.get(number)
        if step is None:
            raise RadioplatError(
                f"record {kind} has schema {number}, which radioplat {__version__} cannot bring up",
                where=str(folder),
                hint="Use an older version of radioplat, or choose another folder. Nothing was changed.",
            )
        step(files)


def _finish(folder: Path) -> None:
    """Remove what a killed upgrade left before it counted, and complete one that counts."""
    shutil.rmtree(folder / _PARTIAL, ignore_errors=True)
    ready = folder / _READY
    if not ready.is_dir():
        return
    files = ready / _FILES
    names = sorted(path.relative_to(files) for path in files.rglob("*") if path.is_file())
    for name in sorted(names, key=lambda name: name != Path(NAME)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (files / name).replace(folder / name)
    for name in json.loads((ready / _REMOVED).read_bytes()):
        (folder / name).unlink(missing_ok=True)
    sync_folder(folder)
    ready.rename(folder / _PARTIAL)  # so that a folder that is half removed does not count
    shutil.rmtree(folder / _PARTIAL)


def _sync(folder: Path) -> None:
    """Wait until all files below ``folder`` are on disk."""
    for path in [folder, *folder.rglob("*")]:
        sync_folder(path)  # fsync takes the descriptor of a file, too
