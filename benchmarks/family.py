"""Four students from one pass of two real teachers: do they cost less than four runs, and are they the same?

``python -m benchmarks.family [--folder DIR] [--rounds N]``. The teachers are EfficientNet-Lite0 and Lite2 with
ImageNet's weights, the images crops of photographs. `benchmarks.judges.family`, which imports nothing of radioplat,
compares checkpoints and counts the forwards that a hook in the teachers (`benchmarks.family_teacher`) wrote down.

In one process, in turn, after a run that warms it: each student alone, then all four together; then, by the command
line, four together that are killed with ``kill -9`` midway and go on; then on a Ray cluster with teachers as actors;
then a sweep, two runs at once, and a pipeline that is killed (`benchmarks.family_proxy`): students of a proxy beside
students of its teachers.

The last line on stdout is one JSON object: ``teacher_forwards_ratio`` (forwards of a teacher for four students over
those for one, in one process; ``_ray`` counted in the actors), ``wall_vs_lone_runs`` (wall time of the four together
over the sum of theirs alone; median of the rounds), ``wall_least`` and ``wall_most`` (of the rounds), ``teacher_share``
(the teachers' share of a lone run's steps), ``model`` (what the shares make ``wall_vs_lone_runs`` if nothing else costs
anything: (t + sum of s) / sum of (t + s)), ``wall_vs_model``, ``max_weight_difference`` (to the lone runs),
``resume_difference`` (of the killed family to the one that was left alone), ``killed_at`` (step),
``pool_duplicate_forwards`` (of two runs at once that share a named pool: forwards beyond those of one of them, over
these), ``sweep_wall_ratio`` (a sweep of eight learning rates, with the start of Ray, over eight lone runs),
``dag_nodes_rerun_after_kill``, ``proxy_vs_direct_fidelity``, and ``proxy``, what it was computed from.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray
import yaml

import radioplat
from benchmarks import family_proxy
from benchmarks.elastic_inputs import make_inputs
from benchmarks.family_teacher import COUNTS, weights
from benchmarks.folder import kept_or_scratch
from benchmarks.teach.programs import last_line
from radioplat.quickstart.weights import MEAN, STD
from radioplat.spec.loading.load import load_spec, spec_tree
from radioplat.spec.loading.students import student_specs

TEACHERS = {"lite0": "tf_efficientnet_lite0", "lite2": "tf_efficientnet_lite2"}
SIDE, BATCH, STEPS = 112, 16, 24
VIT = "c_radio_v3_vit_base_patch16_reg4_dinov2"
STUDENTS = [
    {"name": "base", "model": {"backbone": {"kwargs": {"embed_dim": 128, "depth": 4, "num_heads": 4}}}},
    {"name": "small", "model": {"backbone": {"kwargs": {"embed_dim": 96, "depth": 4, "num_heads": 3}}}},
    {"name": "narrow", "model": {"backbone": {"kwargs": {"embed_dim": 64, "depth": 6, "num_heads": 2}}}},
    {"name": "cnn", "model": {"backbone": {"type": "lcnet_050", "kwargs": {}, "cpe_max_size": None}}},
]
NAMES = [student["name"] for student in STUDENTS]
TRIALS = 8


def main() -> None:
    """Train, compare and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="for what the runs leave; default: a temporary one")
    parser.add_argument("--rounds", type=int, default=2, help="of lone runs and family, in turn")
    parser.add_argument("--steps", type=int, default=STEPS)
    given = parser.parse_args()
    with kept_or_scratch(given.folder, "family") as home:
        print(json.dumps(measured(home.resolve(), given.rounds, given.steps)))


def measured(home: Path, rounds: int, steps: int) -> dict[str, Any]:
    """Return all figures."""
    begin = time.monotonic()
    spec = family_spec(home, steps)
    train(spec, home / "warm", steps=4)
    lone: dict[str, list[float]] = {name: [] for name in NAMES}
    together: list[float] = []
    for number in range(rounds):
        for name in NAMES:
            with counting(home / "counts_lone.txt" if (number, name) == (0, NAMES[0]) else None):
                lone[name].append(train(alone(spec, name), home / f"lone_{name}_{number}"))
        with counting(home / "counts_family.txt" if number == 0 else None):
            together.append(train(spec, home / f"family_{number}"))
        print(f"round {number}: alone {lone}, together {together}", file=sys.stderr, flush=True)
    walls = [t / sum(lone[name][number] for name in NAMES) for number, t in enumerate(together)]
    shares = {name: teacher_share(home / f"lone_{name}_{rounds - 1}") for name in NAMES}
    taught = [statistics.median(lone[name]) * share for name, share in shares.items()]
    model = (statistics.fmean(taught) + sum(statistics.median(lone[n]) * (1 - shares[n]) for n in NAMES)) / sum(
        statistics.median(lone[name]) for name in NAMES
    )
    apart = [differ(member(home / "family_0", name), home / f"lone_{name}_0" / "distill") for name in NAMES]
    killed = kill_and_go_on(spec, home / "killed", steps)
    again = [differ(member(home / "killed", name), member(home / "family_0", name)) for name in NAMES]
    rayed = on_ray(spec, home / "ray", home / "counts_ray.txt")
    swept = sweep(spec, home / "sweep")
    pool = duplicates(spec, home, home / "counts_pool.txt")
    proxy = family_proxy.measured(home / "proxy", epochs=2, proxy_epochs=1)
    one, all_ = forwards(home / "counts_lone.txt"), forwards(home / "counts_family.txt")
    wall = statistics.median(walls)
    return {
        "teacher_forwards_ratio": max(all_[name] / one[name] for name in one),
        "teacher_forwards_ratio_ray": rayed,
        "pool_duplicate_forwards": round(pool, 4),
        "sweep_wall_ratio": round(swept / (TRIALS * statistics.median(lone["small"])), 4),
        "wall_vs_lone_runs": round(wall, 4),
        "wall_least": round(min(walls), 4),
        "wall_most": round(max(walls), 4),
        "teacher_share": round(statistics.fmean(shares.values()), 4),
        "model": round(model, 4),
        "wall_vs_model": round(wall / model, 4),
        "max_weight_difference": max(each["difference"] for each in apart),
        "numbers_compared": sum(each["numbers"] for each in apart),
        "resume_difference": max(each["difference"] for each in again),
        "dag_nodes_rerun_after_kill": proxy["dag_nodes_rerun_after_kill"],
        "proxy_vs_direct_fidelity": proxy["proxy_vs_direct_fidelity"],
        "proxy": proxy,
        "killed_at": killed,
        "shares": {name: round(share, 4) for name, share in shares.items()},
        "seconds_alone": {name: [round(s, 2) for s in each] for name, each in lone.items()},
        "seconds_together": [round(s, 2) for s in together],
        "steps": steps,
        "cpus": os.cpu_count(),
        "seconds": round(time.monotonic() - begin),
    }


def family_spec(home: Path, steps: int) -> dict[str, Any]:
    """Write images and weights; return the spec of the four students."""
    inputs = home / "inputs"
    make_inputs(inputs, images=480, shards=4)
    (home / "weights").mkdir(parents=True, exist_ok=True)
    teachers = [
        {
            "name": name,
            "model": {"backbone": {"type": "benchmarks.family_teacher:Counted", "kwargs": {"name": timm_name}}},
            "pretrained_teacher_model_path": str(weights(timm_name, home / "weights")),
            "mode": "combo",
            "input_size": 224,  # as they were trained
            "norm_mean": list(MEAN),
            "norm_std": list(STD),
        }
        for name, timm_name in TEACHERS.items()
    ]
    return {
        "model": {"backbone": {"type": VIT, "cpe_max_size": SIDE}},
        "dataset": {
            "img_size": SIDE,
            "batch_size": BATCH,
            "workers": 1,
            "index_dir": str(home / "index"),
            "augmentation": {"views_per_image": 0},  # teachers are asked to the end
            "train_dataset": {"tar_data_sources": [{"root_dir": str(inputs / "shards"), "steps_per_epoch": steps}]},
        },
        "train": {
            "global_batch_size": BATCH,
            "num_epochs": 1,
            "checkpoint_interval": max(1, steps // 3),
            "checkpoint_interval_unit": "step",
            "precision": "fp32",
            "enable_ema": True,
            "optim": {"lr": 1e-3},
            "threads": os.cpu_count(),  # by default one core of two is left to decoding
        },
        "distill": {"teacher": teachers, "students": STUDENTS},
        "cluster": {"mode": "local"},
    }


def alone(spec: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the spec of one student alone."""
    tree = spec_tree(student_specs(load_spec(spec))[name])
    tree["dataset"]["index_dir"] = spec["dataset"]["index_dir"]
    return tree


def train(spec: dict[str, Any], results: Path, steps: int | None = None) -> float:
    """Train in this process; return the seconds of the call."""
    begin = time.perf_counter()
    limit = {} if steps is None else {"max_steps": steps}
    given = {**spec, "results_dir": str(results), "train": {**spec["train"], **limit}}
    radioplat.distill(given, say=lambda line: None)
    return time.perf_counter() - begin


def member(results: Path, name: str) -> Path:
    """Return the folder of a student's run in a family."""
    return results / "students" / name / "distill"


def differ(ours: Path, theirs: Path) -> dict[str, Any]:
    """Let the judge compare the last checkpoints of two runs."""
    return last_line("benchmarks.judges.family", "weights", ours / "model_latest", theirs / "model_latest")


def forwards(file: Path, rows: int = BATCH) -> dict[str, int]:
    """Let the judge count the forwards of each teacher."""
    return last_line("benchmarks.judges.family", "forwards", file, "--rows", rows)["forwards"]


def teacher_share(results: Path) -> float:
    """Return the share of a lone run's steps in which it waited for the teachers, which compute in its process."""
    lines = [json.loads(line) for line in (results / "distill" / "status.json").read_text().splitlines()]
    steps = [line["kpi"] for line in lines if "seconds/step" in line.get("kpi", {})][1:]
    return sum(s["seconds/wait/teachers"] for s in steps) / sum(s["seconds/step"] for s in steps)


@contextlib.contextmanager
def counting(file: Path | None) -> Iterator[None]:
    """Let teachers that compute in the block write their forwards to ``file``."""
    if file is not None:
        os.environ[COUNTS] = str(file)
    try:
        yield
    finally:
        os.environ.pop(COUNTS, None)


def kill_and_go_on(spec: dict[str, Any], results: Path, steps: int) -> int:
    """Give the command, kill it after its first checkpoint, and give it again; return the step it was killed at."""
    results.mkdir(parents=True, exist_ok=True)
    path = results / "spec.yaml"
    path.write_text(yaml.safe_dump({**spec, "results_dir": str(results)}))
    command = [sys.executable, "-m", "radioplat.cli", "distill", "-e", str(path)]
    log = (results / "log.txt").open("w")
    with subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True) as process:
        while process.poll() is None and last_step(member(results, NAMES[0])) < steps // 2:
            time.sleep(0.05)
        at = last_step(member(results, NAMES[0]))
        os.killpg(process.pid, signal.SIGKILL)
    subprocess.run(command, check=True, stdout=log, stderr=log)
    return at


def last_step(folder: Path) -> int:
    """Return the last step in a run's status.json; 0 without any."""
    try:
        lines = (folder / "status.json").read_text().splitlines()
    except OSError:
        return 0
    return max((json.loads(line).get("step", 0) for line in lines if '"step"' in line), default=0)


def on_ray(spec: dict[str, Any], results: Path, counts: Path) -> float:
    """Train on a Ray cluster with the teachers as actors; return their forwards over the micro-batches of the run."""
    steps = 8
    changes = {
        "results_dir": str(results),
        "train": {**spec["train"], "max_steps": steps, "threads": None},
        "cluster": {"mode": "ray", "cpus_per_worker": 0.5, "cpus_per_decode": 0.5},
        "teachers": {name: {"num_cpus": 0.5} for name in TEACHERS},
    }
    with counting(counts):
        radioplat.distill({**spec, **changes}, say=lambda line: None)
    return max(count / steps for count in forwards(counts).values())


def sweep(spec: dict[str, Any], results: Path) -> float:
    """Try eight rates for one student; return the seconds of the call."""
    space = {
        "task": "distill",
        "parameters": {"train.optim.lr": {"grid": [3e-4 * 1.5**i for i in range(TRIALS)]}},
        "objectives": [{"metric": "params", "mode": "min"}],
        "search": {"algorithm": "grid"},
        "together": TRIALS,
    }
    given = {**alone(spec, "small"), "results_dir": str(results)}
    begin = time.perf_counter()
    report = radioplat.tune(given, space=space, say=lambda line: print(line, file=sys.stderr))
    seconds = time.perf_counter() - begin
    if len(report.done) != TRIALS:
        raise RuntimeError(f"{len(report.done)} of {TRIALS} trials are done")
    return seconds


def duplicates(spec: dict[str, Any], home: Path, counts: Path) -> float:
    """Train two students at once, each in a run of its own, on a cluster with one named pool for each teacher."""
    steps = 8
    with counting(counts):
        address = ray.init(address="local", num_cpus=6, include_dashboard=False, logging_level="error").address_info
    try:
        environment = os.environ | {"RAY_ADDRESS": address["gcs_address"], COUNTS: str(counts)}
        runs = []
        for name in NAMES[1:3]:
            tree = alone(spec, name)
            tree["train"] |= {"max_steps": steps, "threads": None}
            tree |= {"results_dir": str(home / f"pool_{name}")}
            tree["cluster"] |= {"mode": "ray", "cpus_per_worker": 0.5, "cpus_per_decode": 0.5}
            tree["teachers"] = {teacher: {"num_cpus": 0.5, "pool": f"family_{teacher}"} for teacher in TEACHERS}
            path = home / f"pool_{name}.yaml"
            path.write_text(yaml.safe_dump(tree))
            command = [sys.executable, "-m", "radioplat.cli", "distill", "-e", str(path)]
            runs.append(subprocess.Popen(command, env=environment, stdout=sys.stderr))
        if any(run.wait() for run in runs):
            raise RuntimeError("a run that shares a pool failed")
    finally:
        ray.shutdown()
    return max(count / steps - 1 for count in forwards(counts).values())


if __name__ == "__main__":
    main()
