"""``radioplat lineage ARTIFACT``: what an artifact comes from; with ``--image ID``, what comes from an image."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from radioplat.errors import RadioplatError
from radioplat.tasks.lineage.image import ImageHistory, history_of
from radioplat.tasks.lineage.images import RunImages
from radioplat.tasks.lineage.node import FileRecord, Node, State
from radioplat.tasks.lineage.trace import Tracer, runs_of
from radioplat.tasks.lineage.written import write_history, write_lineage


@dataclass(frozen=True)
class Lineage:
    """The origin of an artifact.

    Attributes:
        artifact: its node; ``made_from`` leads to the others.
        images: number of different images that it was taught on, over all its runs.
        runs: the images of each run, read from its ledger.
        image: of ``--image``: its steps, and what comes from it; None without it.
        page: ``lineage.html``, beside ``lineage.json``, ``images.parquet`` and ``SHA256SUMS``, or ``image.html``; None
            without a folder.
    """

    artifact: Node
    images: int
    runs: Sequence[RunImages] = ()
    image: ImageHistory | None = None
    page: Path | None = None

    @property
    def files(self) -> dict[State, list[FileRecord]]:
        """All files by their state, each path once."""
        files = {(file.path, file.sha256): file for node in self.artifact.walk() for file in node.files}
        return {state: [file for file in files.values() if file.state is state] for state in State}

    @property
    def is_same(self) -> bool:
        """Whether no file and no shard has changed since its hash, or its size and time, were recorded."""
        shards = [shard for node in self.artifact.walk() for shard in node.facts.get("shards", ())]
        changed = [shard for shard in shards if shard["state"] == State.changed.value]
        return not changed and not self.files[State.changed]


def lineage(artifact: str | Path, out: str | Path | None = None, image: str | int | None = None) -> Lineage:
    """Follow the recorded hashes from an artifact to its runs, teachers, shards and images. Only ``out`` is written.

    Args:
        artifact: an engine, an ONNX file, exported weights, a checkpoint folder, or a results folder: then all that is
            in it and nothing else in it was made of.
        out: folder for a page, JSON, a table of the images and a list of hashes for ``sha256sum -c``.
        image: the other way: which steps had this image, and which checkpoints and artifacts come from it. Its number
            in the index of the artifact's last run, as in the ledger, or ``SHARD/KEY``.

    Raises:
        RadioplatError: there is no such artifact or image, or a record cannot be read.

    Example:
        >>> made = radioplat.lineage("results/gen_trt_engine/student.engine", out="lineage")
        >>> made.images, made.is_same
        (2935, True)
    """
    path = Path(artifact)
    if not path.exists():
        hint = "Give an engine, an ONNX file, weights, a checkpoint folder, or a results folder."
        raise RadioplatError("it does not exist", where=str(path), hint=hint)
    tracer = Tracer(verify=image is None, with_images=image is None)
    node = tracer.trace(path)
    folder = None if out is None else Path(out)
    if image is not None:
        history = history_of(str(image), node, tracer)
        page = None if folder is None else write_history(folder, history)
        return Lineage(node, 0, image=history, page=page)
    runs = [tracer.images[run.id] for run in runs_of(node) if run.id in tracer.images]
    made = Lineage(node, _distinct(runs), runs)
    if folder is None:
        return made
    return Lineage(node, made.images, runs, page=write_lineage(folder, node, made.images, runs))


def _distinct(runs: Sequence[RunImages]) -> int:
    """Return the number of different images of all runs; runs may have different indexes of the same shards."""
    if len(runs) < 2:
        return sum(run.distinct for run in runs)
    shards: dict[tuple[str, int, str], np.ndarray] = {}
    for run in runs:
        table, starts = run.index.shards, run.index.starts.tolist()
        names = zip(run.index.shard_paths, table["size"].to_pylist(), table["digest"].to_pylist(), strict=True)
        for row, name in enumerate(names):
            mine = run.times[starts[row] : starts[row + 1]] > 0
            shards[name] = shards[name] | mine if name in shards else mine
    return sum(int(np.count_nonzero(mine)) for mine in shards.values())


def states_in_words(made: Lineage) -> str:
    """Return how many files are in which state, in a line."""
    counts = Counter({state.value: len(files) for state, files in made.files.items() if files})
    return ", ".join(f"{count} {state}" for state, count in counts.most_common())
