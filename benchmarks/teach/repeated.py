"""A pass whose views the teachers have seen: how fast is it beside a loop that has no teacher?"""

from __future__ import annotations

import json
import shutil
import statistics
from pathlib import Path
from typing import Any

from benchmarks.teach.peer_loop import STUDENT
from benchmarks.teach.programs import TEACHERS, last_line, radioplat, teacher
from radioplat.quickstart.weights import teacher_weights

TEACHER = "lite0"
SHARDS, SIDE, BATCH = 4, 96, 32
PASS, PASSES, ROUNDS = 62, 4, 3  # four shards have 2,000 crops; in four passes views repeat by default


def run(folder: Path, seeds: list[int]) -> dict[str, Any]:
    """Time both in turn, the same student with linear heads; the ratio of images in a second, ours over the loop's."""
    home = folder / "repeated"
    shards = home / "shards"
    shards.mkdir(parents=True, exist_ok=True)
    for shard in sorted((folder / "corpora" / "train").glob("*.tar"))[:SHARDS]:
        if not (shards / shard.name).exists():
            (shards / shard.name).symlink_to(shard)
    weights = teacher_weights(TEACHERS[TEACHER], folder / "weights")
    first, again, loop = [], [], []
    for number in range(ROUNDS):
        done = home / f"round_{number}.json"
        if not done.exists():
            done.write_text(json.dumps(_round(home, shards, weights)))
        taught, repeated, alone = json.loads(done.read_text())
        first.append(BATCH / taught)
        again.append(BATCH / repeated)
        loop.append(BATCH / alone)
    ratios = [ours / theirs for ours, theirs in zip(again, loop, strict=True)]
    return {
        "repeated": {"first_pass": first, "repeated_pass": again, "loop_without_teacher": loop, "ratios": ratios},
        "repeated_pass_ratio": statistics.median(ratios),
    }


def _round(home: Path, shards: Path, weights: Path) -> tuple[float, float, float]:
    """Return median seconds of a step of the first pass, of later ones, and of the loop."""
    results = home / "run"
    shutil.rmtree(results, ignore_errors=True)
    radioplat("distill", results, _spec(home, shards, weights))
    steps = [
        line["kpi"]["seconds/step"]
        for line in map(json.loads, (results / "distill" / "status.json").read_text().splitlines())
        if "seconds/step" in line.get("kpi", {})
    ]
    assert len(steps) == PASS * PASSES, len(steps)
    options = ["--steps", 2 * PASS, "--batch", BATCH, "--without-teacher"]
    loop = last_line("benchmarks.teach.peer_loop", shards, weights, home / "loop.safetensors", *options)
    return statistics.median(steps[2:PASS]), statistics.median(steps[PASS + 1 :]), loop["step"]


def _spec(home: Path, shards: Path, weights: Path) -> dict[str, Any]:
    source = {"root_dir": str(shards), "samples_per_file": 500, "steps_per_epoch": PASS}
    return {
        "model": {"backbone": {"type": STUDENT}},
        "dataset": {
            "img_size": SIDE,
            "batch_size": BATCH,
            "train_dataset": {"tar_data_sources": [source]},
            "index_dir": str(home / "index"),
        },
        "train": {"max_steps": PASS * PASSES, "num_epochs": PASSES},
        "distill": {"teacher": [teacher(TEACHER, weights, "combo")], "use_mlp": False},
        "cluster": {"mode": "local"},
    }
