"""One image: the steps of the runs that had it, the checkpoints with it, and the artifacts that come from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from radioplat.data.index.shard_index import ShardIndex
from radioplat.data.ledger.ledger import read_rejected
from radioplat.data.ledger.ledger_rows import LedgerRows
from radioplat.errors import DataError, RadioplatError
from radioplat.tasks.lineage.node import Kind, Node
from radioplat.tasks.lineage.student import UNLISTED
from radioplat.tasks.lineage.trace import Tracer, run_of_results, runs_of

OPTION = "--image"
_LEAD_ON = (Kind.engine, Kind.onnx, Kind.student)  # each was made of something


@dataclass(frozen=True)
class Use:
    """A step that had the image.

    Attributes:
        run: folder of the run.
        id: of the image, in the index of that run.
        step: counted from 1, as in ``status.json``.
        kept: whether the step led to a checkpoint that is there; else it was run again, or discarded.
        reason: why it had no effect on the weights, as recorded; empty if it had one.
    """

    run: str
    id: int
    attempt: int
    step: int
    rank: int
    position: int
    kept: bool
    reason: str = ""


@dataclass(frozen=True)
class Descendant:
    """An artifact beside the question whether the image is in it.

    Attributes:
        contains: None if its records do not lead to a run, or it was also made with images that no ledger lists.
        times: in how many samples of the runs that it comes from.
    """

    kind: Kind
    path: str
    contains: bool | None
    times: int = 0


@dataclass(frozen=True)
class ImageHistory:
    """The records of one image.

    Attributes:
        given: the text that named it.
        shard, key: where it is.
        uses: the steps that had it, by run and step.
        artifacts: the checkpoints, smaller students, files and engines of the results folder.
        notes: what is not known, a sentence each.
    """

    given: str
    shard: str
    key: str
    uses: list[Use]
    artifacts: list[Descendant]
    notes: list[str]


def history_of(given: str, node: Node, tracer: Tracer) -> ImageHistory:
    """Return the history of an image in the results folder of an artifact.

    Args:
        given: a number in the index of the artifact's last run, or ``SHARD/KEY``.
        node: of the artifact.
        tracer: that made the node.

    Raises:
        DataError: there is no such image, or no run whose index could have it.
    """
    own = [Path(run.path) for run in runs_of(node)]
    surveys = dict.fromkeys(tracer.survey(path) for path in (Path(node.path), *own))
    if node.kind is Kind.results and (newest := run_of_results(Path(node.path))):
        own = [newest.resolve(), *own]
    folders = list(dict.fromkeys([*own, *(run for survey in surveys for run in survey.runs)]))
    indexes, notes = _indexes(folders)
    if not indexes:
        hint = "Give a results folder with its runs: their ledgers and indexes say which images they had."
        raise DataError("no run with an index is recorded for this artifact", where=node.path, hint=hint)
    base = next(iter(indexes))
    row = _row_of(given, indexes[base], base)
    shard, key = indexes[base].shard_paths[int(indexes[base].shard[row])], indexes[base].key(row)
    rows = {folder: _same_image(index, shard, key) for folder, index in indexes.items()}
    rows[base] = row
    paths = [path for each in surveys for path in (*each.students, *each.onnx, *each.engines, *each.weights)]
    nodes = [each for path in paths if (each := _traced(path, tracer)) is not None]
    uses = [use for folder, row in rows.items() if row is not None for use in _uses(folder, row, tracer, notes)]
    return ImageHistory(given, shard, key, uses, [_descendant(each, uses, tracer) for each in nodes], notes)


def _indexes(folders: list[Path]) -> tuple[dict[Path, ShardIndex], list[str]]:
    indexes, notes = dict[Path, ShardIndex](), []
    for folder in folders:
        try:
            indexes[folder] = ShardIndex.load(folder / "data")
        except RadioplatError as error:
            notes.append(f"the images of {folder} are not known: {error.problems[0].message}")
    return indexes, notes


def _row_of(given: str, index: ShardIndex, folder: Path) -> int:
    """Return the row of the image that a user names.

    Raises:
        DataError: there is none.
    """
    if given.isdecimal() and given == str(int(given)):
        if int(given) < len(index):
            return int(given)
        hint = f"Give a number from 0 to {len(index) - 1:,}, or SHARD/KEY."
        raise DataError(f"the index of {folder} has no image {given}", where=OPTION, hint=hint)
    names = zip(index.shard_paths, index.shards["name"].to_pylist(), strict=True)
    for path, name in names:
        for start in (f"{name}/", f"{path}/"):
            if given.startswith(start) and (row := _same_image(index, path, given.removeprefix(start))) is not None:
                return row
        if given in (name, path) and (row := _same_image(index, path, None)) is not None:
            return row
    hint = "images.parquet of `radioplat lineage ARTIFACT --out DIR` lists those that were used, by id, shard and key."
    raise DataError(f"the index of {folder} has no image {given!r}", where=OPTION, hint=hint)


def _same_image(index: ShardIndex, shard: str, key: str | None) -> int | None:
    """Return the row of an image; None if the index does not have it.

    Args:
        key: None for the only image of a file.
    """
    for number, path in enumerate(index.shard_paths):
        if path == shard:
            start, stop = index.starts[number : number + 2].tolist()
            keys = index.rows.read(start, stop, ["key"])["key"].to_pylist()
            place = (
                0 if key is None and len(keys) == 1 else next((i for i, each in enumerate(keys) if each == key), None)
            )
            return None if place is None else start + place
    return None


def _traced(path: Path, tracer: Tracer) -> Node | None:
    node = tracer.trace(path)
    # Weights that no record connects with radioplat are teachers' files, for example.
    return None if node.kind is Kind.weights and not node.made_from else node


def _uses(folder: Path, row: int, tracer: Tracer, notes: list[str]) -> Iterator[Use]:
    """Yield the steps of a run that had the image in a row of its index, in order."""
    try:
        reader = LedgerRows(folder / "ledger")
        rows = [table.filter(pc.equal(table["id"], row)) for table in reader.all_tables()]
        rejected = read_rejected(folder / "ledger")
    except (RadioplatError, OSError) as error:
        notes.append(f"the ledger of {folder} cannot be read: {error}")
        return
    notes += [f"{folder}: {path.name} cannot be read: {why}" for path, why in reader.unreadable.items()]
    reasons: dict[tuple[int, int, int], str] = {}
    for each in rejected.filter(pc.equal(rejected["id"], row)).to_pylist():
        reasons[each["attempt"], each["step"], each["position"]] = each["reason"]
    parts = [part for run in tracer.reached.values() if run.folder == folder for part in run.parts]
    table = pa.concat_tables(rows).sort_by([("step", "ascending"), ("attempt", "ascending")]) if rows else None
    for each in table.to_pylist() if table is not None else ():
        attempt, step, position = each["attempt"], each["step"], each["position"]
        kept = any(number == attempt and start <= step < stop for number, start, stop in parts)
        reason = reasons.get((attempt, step, position), "")
        yield Use(str(folder), row, attempt, step + 1, each["rank"], position, kept, reason)


def _descendant(node: Node, uses: list[Use], tracer: Tracer) -> Descendant:
    times = 0
    for run in runs_of(node):
        reached = tracer.reached[run.id]
        for use in uses:
            inside = any(n == use.attempt and start < use.step <= stop for n, start, stop in reached.parts)
            times += use.run == run.path and inside and not use.reason
    made_of = list(node.walk(teachers=False))
    ends = [each for each in made_of if each.kind in _LEAD_ON and not each.made_from or each.facts.get(UNLISTED)]
    return Descendant(node.kind, node.path, True if times else None if ends else False, times)
