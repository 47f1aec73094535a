"""The images that led to a checkpoint, as the run's ledger lists them: how often, and in which steps."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from radioplat.data.index.scratch import scratch
from radioplat.data.index.shard_index import ShardIndex
from radioplat.data.ledger.ledger import read_rejected
from radioplat.data.ledger.ledger_rows import LedgerRows
from radioplat.data.ledger.lineage import Part
from radioplat.data.storage.files import FileState, list_files
from radioplat.tasks.lineage.node import State
from radioplat.training.checkpoints.run_state import RunState

SCHEMA = pa.schema(
    [
        ("run", pa.string()),
        ("id", pa.int64()),  # row of the run's index, as in its ledger
        ("shard", pa.large_string()),
        ("key", pa.large_string()),
        ("times", pa.int64()),
        ("without_effect", pa.int64()),  # of these times: unreadable then, or in a step that moved no weight
        ("first_step", pa.int64()),  # counted from 1, as in status.json
        ("last_step", pa.int64()),
    ]
)
_COLUMNS = ["step", "position", "id"]
_TRIES = 5  # while a run goes on, rows move under the reader


@dataclass
class RunImages:
    """The images of a run's steps up to a checkpoint.

    Attributes:
        folder: of the run.
        index: its copy of the index.
        times: int64 ``[N]``, how often each row of the index reached backward.
        without_effect: int64 ``[N]``, how many of these times it had no weight or the step was skipped.
        first, last: int64 ``[N]``, steps counted from 0; not meaningful where ``times`` is 0.
        parts: attempt, first step, last step plus 1.
        problems: what the ledger lacks, a sentence each.
    """

    folder: Path
    index: ShardIndex
    times: np.ndarray
    without_effect: np.ndarray
    first: np.ndarray
    last: np.ndarray
    parts: list[Part]
    problems: list[str]

    @cached_property
    def distinct(self) -> int:
        """Number of different images."""
        return int(np.count_nonzero(self.times))

    @property
    def total(self) -> int:
        """Number of samples, repetitions included."""
        return int(self.times.sum())

    def tables(self) -> Iterator[pa.Table]:
        """Yield the rows of :data:`SCHEMA`, by id."""
        paths = np.array(self.index.shard_paths, object)
        for start, block in self.index.rows.blocks(["key"]):
            rows = np.flatnonzero(self.times[start : start + len(block)])
            ids = rows + start
            yield pa.table(
                [
                    pa.array([str(self.folder)] * len(ids), pa.string()),
                    pa.array(ids, pa.int64()),
                    pa.array(paths[self.index.rows.shard_of(ids)], pa.large_string()),
                    block["key"].take(pa.array(rows)).cast(pa.large_string()),
                    *(pa.array(values[ids], pa.int64()) for values in (self.times, self.without_effect)),
                    *(pa.array(values[ids] + 1, pa.int64()) for values in (self.first, self.last)),
                ],
                schema=SCHEMA,
            )

    def shards(self) -> list[dict[str, Any]]:
        """Return the shards with such images, as JSON; the images of a folder are one entry."""
        starts, shards = self.index.starts, self.index.shards
        count = np.add.reduceat(np.append(self.times > 0, False), starts[:-1]) * (np.diff(starts) > 0)
        times = np.add.reduceat(np.append(self.times, 0), starts[:-1]) * (np.diff(starts) > 0)
        states = shard_states(self.index)
        entries: dict[str, dict[str, Any]] = {}
        for row in np.flatnonzero(count).tolist():
            kind, root = shards["kind"][row].as_py(), shards["root"][row].as_py()
            path = root if kind == "image" else self.index.shard_paths[row]
            entry = entries.setdefault(path, {"path": path, "images": 0, "times": 0, "state": State.same.value})
            entry["images"] += int(count[row])
            entry["times"] += int(times[row])
            if states[row] is not State.same:
                entry["state"] = states[row].value
        return list(entries.values())


def images_of(folder: Path, state: RunState, home: Path) -> RunImages:
    """Read the ledger of a run up to a checkpoint.

    Args:
        state: of the checkpoint.
        home: a folder for temporary files.

    Raises:
        DataError: the run's copy of the index cannot be read.
        NewerRecord: a newer version wrote the ledger.
        OSError: the storage fails.
    """
    index = ShardIndex.load(folder / "data")
    for attempt in range(_TRIES):
        with contextlib.suppress(FileNotFoundError):
            return _read(folder, index, state, home)
        time.sleep(0.1 * 2**attempt)
    return _read(folder, index, state, home)


def _read(folder: Path, index: ShardIndex, state: RunState, home: Path) -> RunImages:
    reader = LedgerRows(folder / "ledger")
    parts = reader.parts(state.order_from, state.reached)
    times, without, first, last = (scratch(len(index), np.int64, home) for _ in range(4))
    problems = []
    for attempt, *steps in parts:
        for table in reader.tables(attempt, (steps[0], steps[1]), _COLUMNS):
            rows, step = table["id"].to_numpy(), table["step"].to_numpy()
            inside = (rows >= 0) & (rows < len(index))
            if not inside.all():
                problems.append(f"{np.count_nonzero(~inside)} rows of the ledger are not in the run's index")
                rows, step = rows[inside], step[inside]
            fresh = times[rows] == 0
            first[rows[fresh]] = np.iinfo(np.int64).max
            np.add.at(times, rows, 1)
            np.minimum.at(first, rows, step)
            np.maximum.at(last, rows, step)
    rejected = rejected_of(folder / "ledger", parts)
    rows = rejected["id"].to_numpy()
    np.add.at(without, rows[(rows >= 0) & (rows < len(index))], 1)
    problems += reader.problems(state.order_from, state.reached)
    return RunImages(folder, index, times, without, first, last, parts, problems)


def rejected_of(ledger: Path, parts: list[Part]) -> pa.Table:
    """Return the samples without weight, or of skipped steps, that led to a checkpoint, each once."""
    table = read_rejected(ledger)
    keep = np.zeros(len(table), bool)
    attempt, step = table["attempt"].to_numpy(), table["step"].to_numpy()
    for number, start, stop in parts:
        keep |= (attempt == number) & (step >= start) & (step < stop)
    table = table.filter(pa.array(keep))
    rows = table.group_by(["attempt", "step", "position", "id"]).aggregate([("reason", "list")])
    reasons = [", ".join(sorted(set(reason))) for reason in rows["reason_list"].to_pylist()]
    return rows.drop_columns(["reason_list"]).append_column("reason", pa.array(reasons, pa.string()))


def shard_states(index: ShardIndex) -> list[State]:
    """Return for each shard of an index whether it is as it was when it was indexed: by size and time."""
    there: dict[str, dict[str, FileState]] = {}
    for root in pc.unique(index.shards["root"]).to_pylist():
        try:
            there[root] = dict(list_files(root, lambda name: True))
        except OSError:
            there[root] = {}
    known = zip(*(index.shards[name].to_pylist() for name in ("root", "name", "size", "mtime_ns")), strict=True)
    states = []
    for root, name, size, mtime_ns in known:
        state = there[root].get(name)
        same = State.same if state == FileState(size, mtime_ns) else State.changed
        states.append(State.absent if state is None else same)
    return states
