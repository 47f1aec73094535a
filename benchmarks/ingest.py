"""Images per second into a training step: ours, webdataset + DataLoader, and the bare limit, in turn.

``python -m benchmarks.ingest [--shards DIR ...] [--rounds N] [--images N]``. Without ``--shards`` it makes 2,400
photographs of 400 to 1400 px out of those that installed packages carry. Every round runs every side once, each in a
process of its own, so that a slow minute of the machine hits all; ratios are taken inside a round. For the figures
with rejects a filter on the short side is set so that it turns 30% of the images away: the stream never reads them,
the DataLoader's user filters after decoding (and, in the table only, before it, by the header).
The last line is one JSON object of medians.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import statistics
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.ingest_photographs import make_shards
from benchmarks.ingest_sides import BATCH, SIDES, Work
from radioplat.common import terminal
from radioplat.data.index.build import build_index
from radioplat.data.loading.run_data import RunData, dataset_from_json, dataset_to_json
from radioplat.spec.schema.dataset import DatasetConfig, ResolutionFilter, SplitConfig, TarSource

REJECTED = 0.3
RATIOS = {
    "stream_vs_dataloader": ("stream", "dataloader"),
    "stream_vs_bare": ("stream", "bare"),
    "stream_vs_dataloader_rejects": ("stream, rejects", "dataloader, rejects"),
    "local_vs_dataloader": ("local", "dataloader"),
    "local_vs_bare": ("local", "bare"),
    "two_views_vs_one": ("local, 2 views", "local"),
    "four_views_vs_one": ("local, 4 views", "local"),
}


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description="Ingest speed; see the head of the file.")
    arguments.add_argument("--shards", nargs="+", metavar="DIR", help="folders of tar shards")
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--images", type=int, default=2400, help="timed a side and round")
    arguments.add_argument("--keep", metavar="DIR", help="where the photographs are made, and kept for the next time")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="ingest") as scratch:
        folders = [Path(f) for f in given.shards or ()]
        if not folders:
            folders = [Path(given.keep or f"{scratch}/shards")]
            make_shards(folders[0])
        plain = _work(folders, Path(scratch) / "plain", given.images, 0)
        strict = _work(folders, Path(scratch) / "strict", given.images, _short_side(plain))
        rounds = [_round(plain, strict, i) for i in range(given.rounds)]
    _report(rounds)


def _work(folders: list[Path], scratch: Path, images: int, min_short_side: int) -> Work:
    split = SplitConfig(
        tar_data_sources=[TarSource(str(folder)) for folder in folders],
        native_resolution_filter=ResolutionFilter(min_short_side=min_short_side),
    )
    dataset = DatasetConfig(batch_size=BATCH, train_dataset=split)
    index = build_index(split, "dataset.train_dataset", scratch / "index", max_pixels=dataset.max_pixels)
    RunData.create(index, split, dataset.max_pixels).save(scratch / "run")
    return Work(tuple(index.shard_paths), min_short_side, str(scratch / "run"), dataset_to_json(dataset), images)


def _with_views(work: Work, count: int) -> Work:
    """The same, with so many views of each image in a step; the index does not depend on it."""
    dataset = dataset_from_json(work.dataset)
    dataset.train_dataset.views_per_step = count
    return dataclasses.replace(work, dataset=dataset_to_json(dataset))


def _short_side(work: Work) -> int:
    """The threshold that turns the share :data:`REJECTED` away."""
    data = RunData.load(Path(work.folder), SplitConfig())
    return int(np.quantile(np.minimum(data.index.width, data.index.height), REJECTED))


def _round(plain: Work, strict: Work, number: int) -> dict[str, float]:
    plan = [(name, name, plain) for name in ("dataloader", "bare", "local", "stream")]
    plan += [(f"local, {count} views", "local", _with_views(plain, count)) for count in (2, 4)]
    plan += [(f"{name}, rejects", name, strict) for name in ("dataloader", "dataloader_header_filter", "stream")]
    found = {}
    for label, side, work in plan if number % 2 == 0 else reversed(plan):
        found[label] = _apart(side, work)
        print(f"round {number + 1}: {label} {found[label]:.0f} images/s", flush=True)
    return found


def _apart(side: str, work: Work) -> float:
    """One side in a new process, so that nothing of one side is left for the next."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_run_side, args=(side, work, theirs))
    process.start()
    theirs.close()
    try:
        return ours.recv()
    except EOFError:
        process.join()
        raise SystemExit(f"{side}: its process ended with status {process.exitcode} before it gave a figure") from None
    finally:
        process.join()


def _run_side(side: str, work: Work, answer) -> None:
    answer.send(SIDES[side](work))


def _report(rounds: list[dict[str, float]]) -> None:
    ratios = {name: [r[a] / r[b] for r in rounds] for name, (a, b) in RATIOS.items()}
    rows = [[name, *_spread([r[name] for r in rounds], "{:.0f}")] for name in rounds[0]]
    rows += [[name, *_spread(values, "{:.2f}")] for name, values in ratios.items()]
    terminal.show_table(f"ingest, {len(rounds)} rounds", ["images/s, ratios", "median", "least", "most"], rows)
    result = {name: round(statistics.median(values), 3) for name, values in ratios.items()}
    result["images_per_s"] = {n: round(statistics.median(r[n] for r in rounds), 1) for n in rounds[0]}
    print(json.dumps(result))


def _spread(values: list[float], form: str) -> list[str]:
    return [form.format(f(values)) for f in (statistics.median, min, max)]


if __name__ == "__main__":
    main()
