"""Compare ``images.parquet`` of ``radioplat lineage --out DIR`` with the ledgers, by pyarrow alone.

``python -m benchmarks.judges.lineage DIR``; imports nothing of radioplat. The runs and checkpoints are those that
``lineage.json`` names; which steps of which attempt led to a checkpoint is read from its own ``state.json``, and the
rows from every Parquet file of the ledger, wherever a row is now. Shards are opened by tarfile. The last line on stdout
is one JSON object: ``lineage_images_vs_ledger`` (images of both, over images of either), ``times_equal`` and
``steps_equal`` (shares of the images with the ledger's number of samples, and first and last step), and
``keys_in_shards`` (share of the images whose key is in the shard that is named).
"""

from __future__ import annotations

import argparse
import json
import tarfile
from pathlib import Path

import pyarrow.parquet as pq

Facts = tuple[int, int, int]  # samples, first step, last step, from 1


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    print(json.dumps(judged(parser.parse_args().folder)))


def judged(folder: Path) -> dict[str, float]:
    """The figures."""
    facts = json.loads((folder / "lineage.json").read_text(encoding="utf-8"))
    rows = pq.read_table(folder / "images.parquet").to_pylist()
    ours = {(row["run"], row["id"]): (row["times"], row["first_step"], row["last_step"]) for row in rows}
    theirs: dict[tuple[str, int], Facts] = {}
    for run, checkpoint in _checkpoints(facts["nodes"]):
        theirs |= {(str(run), image): value for image, value in _ledger(run, checkpoint).items()}
    both = ours.keys() & theirs.keys()
    count = max(1, len(ours.keys() | theirs.keys()))
    return {
        "images": len(theirs),
        "lineage_images_vs_ledger": len(both) / count,
        "times_equal": sum(ours[key][0] == theirs[key][0] for key in both) / count,
        "steps_equal": sum(ours[key][1:] == theirs[key][1:] for key in both) / count,
        "keys_in_shards": _in_shards(rows),
    }


def _checkpoints(nodes: dict[str, dict]) -> list[tuple[Path, Path]]:
    """Run and checkpoint of each run that taught the artifact."""
    return [
        (Path(nodes[run]["path"]), Path(node["path"]))
        for node in nodes.values()
        for run in node["made_from"]
        if node["kind"] == "student" and nodes[run]["kind"] == "run"
    ]


def _ledger(run: Path, checkpoint: Path) -> dict[int, Facts]:
    """Images of the steps that led to a checkpoint."""
    state = json.loads((checkpoint / "state.json").read_text(encoding="utf-8"))
    stops = [first for _, first in state["starts"][1:]] + [state["global_step"]]
    spans = {attempt: (first, stop) for (attempt, first), stop in zip(state["starts"], stops, strict=True)}
    samples: dict[tuple[int, int], int] = {}  # step and position: a row may be in two files
    for path in [*(run / "ledger").glob("consumed-a*.parquet"), *(run / "ledger").glob("abandoned-a*.parquet")]:
        table = pq.read_table(path, columns=["attempt", "step", "position", "id"], partitioning=None).to_pydict()
        for attempt, step, position, image in zip(*table.values(), strict=True):
            first, stop = spans.get(attempt, (0, 0))
            if max(first, state["order_from"]) <= step < stop:
                samples[step, position] = image
    images: dict[int, Facts] = {}
    for (step, _), image in samples.items():
        times, first, last = images.get(image, (0, step + 1, step + 1))
        images[image] = times + 1, min(first, step + 1), max(last, step + 1)
    return images


def _in_shards(rows: list[dict]) -> float:
    """Share of the rows whose key is in their shard."""
    keys: dict[str, set[str]] = {}
    there = 0
    for row in rows:
        path = row["shard"]
        if path not in keys:
            with tarfile.open(path) as tar:
                keys[path] = {name.rpartition(".")[0] for name in tar.getnames()}
        there += row["key"] in keys[path]
    return there / max(1, len(rows))


if __name__ == "__main__":
    main()
