"""Kills, students, one hash: a run that loses processes all the time beside one that is left alone.

``python -m benchmarks.demo [--kills 40] [--students 4] [--seed 0] [--steps N] [--folder DIR]``. The students learn from
one pass of two real teachers, with ``train.reduction: exact``: first in one process, then on up to three raylets of
this machine, with Ray Data and the teachers as actors (engine ``ddp``). `benchmarks.judges.killer`,
which knows processes by ``ps`` alone, kills workers, teachers, readers and raylets; a raylet that was killed is
replaced after some seconds, so that the number of workers changes. `benchmarks.judges.ledger` counts the samples.

The last line on stdout is one JSON object: ``hashes_equal`` (share of the students whose file of weights has the
SHA-256 of the run that was left alone), ``blows``, ``missing`` and ``repeated`` (samples, of all students' ledgers),
``teacher_forwards_per_sample`` (forwards of a teacher over the micro-batches of the run and of what was trained again),
``goodput`` (useful share of the wall time), ``seconds``. The exit status is 1 if a hash differs or a sample is missing
or repeated.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import ray

import radioplat
from benchmarks.family import NAMES, STUDENTS, TEACHERS, counting, family_spec, forwards, member
from benchmarks.folder import kept_or_scratch
from benchmarks.teach.programs import last_line
from clusters.local import LocalCluster
from radioplat.tracking.attempts.attempts import Attempts
from radioplat.tracking.attempts.goodput import goodput

SIDE, BATCH, MICRO_BATCHES = 64, 8, 3
WORKERS = (1, 3)


def main() -> int:
    """Train twice, compare and print; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--students", type=int, choices=range(1, len(STUDENTS) + 1), default=len(STUDENTS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--folder", type=Path, help="for what the runs leave; default: a temporary one")
    given = parser.parse_args()
    with kept_or_scratch(given.folder, "demo") as home:
        found = measured(home.resolve(), given)
    print(json.dumps(found))
    return int(found["hashes_equal"] < 1 or bool(found["missing"] or found["repeated"]))


def measured(home: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Return all figures."""
    begin = time.monotonic()
    names = NAMES[: given.students]
    spec = demo_spec(home, given.steps, given.students)
    quiet, beaten = home / "quiet", home / "beaten"
    one = {**spec["train"], "min_workers": None, "max_workers": None}
    radioplat.distill(spec | {"results_dir": str(quiet), "cluster": {"mode": "local"}, "train": one}, say=say)
    blows = beaten_run(spec, beaten, home, given)
    equal = [sha256(member(quiet, name)) == sha256(member(beaten, name)) for name in names]
    samples = given.steps * BATCH * MICRO_BATCHES
    ledgers = [
        last_line("benchmarks.judges.ledger", member(beaten, name) / "ledger", "--samples", samples) for name in names
    ]
    account = goodput(beaten / "distill")
    figures = account.kpi() if account else {}
    counted = forwards(home / "counts.txt", BATCH)
    trained = (samples + figures.get("run/samples_replayed", 0.0)) / BATCH
    return {
        "hashes_equal": sum(equal) / len(equal),
        "blows": len(blows),
        "missing": sum(each["missing"] for each in ledgers),
        "repeated": sum(each["repeated"] for each in ledgers),
        "teacher_forwards_per_sample": round(max(counted.values()) / trained, 4),
        "goodput": round(figures.get("goodput/useful", 0.0), 4),
        "attempts": Attempts(beaten / "distill").last,
        "kinds": {kind: sum(blow["kind"] == kind for blow in blows) for kind in sorted({b["kind"] for b in blows})},
        "seconds": round(time.monotonic() - begin, 1),
        "steps": given.steps,
        "students": len(names),
        "seed": given.seed,
    }


def demo_spec(home: Path, steps: int, students: int) -> dict[str, Any]:
    """Return the spec of the first ``students`` students of `benchmarks.family`, small enough to be beaten."""
    spec = family_spec(home, steps)
    spec["model"]["backbone"]["cpe_max_size"] = SIDE
    spec["dataset"] |= {"img_size": SIDE, "batch_size": BATCH}
    spec["dataset"]["train_dataset"]["tar_data_sources"][0]["steps_per_epoch"] = steps
    spec["train"] |= {
        "global_batch_size": BATCH * MICRO_BATCHES,
        "min_workers": WORKERS[0],
        "max_workers": WORKERS[1],
        "reduction": "exact",
        "engine": "ddp",
        "checkpoint_interval": 2,
        "max_failures": 1000,
        "resize_interval_s": 3.0,
        "keep_last": 2,
    }
    spec["distill"]["students"] = spec["distill"]["students"][:students]
    spec["teachers"] = {name: {"num_cpus": 0.5} for name in TEACHERS}
    return spec


def beaten_run(spec: dict[str, Any], results: Path, home: Path, given: argparse.Namespace) -> list[dict[str, Any]]:
    """Train on a cluster while processes are killed; return the log of the killer."""
    log = home / "kills.jsonl"
    with counting(home / "counts.txt"), LocalCluster(nodes=2) as cluster:
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        head = cluster._cluster.head_node.all_processes["raylet"][0].process.pid
        command = [sys.executable, "-m", "benchmarks.judges.killer", "--below", os.getpid(), "--spare", head]
        command += ["--kills", given.kills, "--seed", given.seed, "--log", log]
        killer = subprocess.Popen([*map(str, command)], stdout=sys.stderr)
        ended = threading.Event()
        keeper = threading.Thread(target=keep_nodes, args=(cluster, random.Random(given.seed), ended), daemon=True)
        keeper.start()
        try:
            place = {"mode": "ray", "address": cluster.address, "cpus_per_worker": 0.5, "cpus_per_decode": 0.5}
            radioplat.distill(spec | {"results_dir": str(results), "cluster": place}, say=say)
        finally:
            ended.set()
            keeper.join()
            killer.terminate()
            killer.wait()
    return [json.loads(line) for line in log.read_text().splitlines()]


def keep_nodes(cluster: LocalCluster, chance: random.Random, ended: threading.Event) -> None:
    """Replace raylets that were killed, after some seconds, and let a third one come now and then."""
    due: list[float] = []
    while not ended.wait(0.5):
        for number, node in list(cluster.nodes.items()):
            if node.all_processes["raylet"][0].process.poll() is not None:
                del cluster.nodes[number]
                cluster._cluster.remove_node(node, allow_graceful=False)
                due.append(time.monotonic() + chance.uniform(3, 10))
        if not due and len(cluster.nodes) < WORKERS[1] and chance.random() < 0.02:
            due.append(time.monotonic())
        for at in [each for each in due if each <= time.monotonic()]:
            due.remove(at)
            cluster.add()


def sha256(folder: Path) -> str:
    """Return the hash of the last checkpoint's weights."""
    return hashlib.sha256((folder / "model_latest" / "student.safetensors").read_bytes()).hexdigest()


def say(line: str) -> None:
    """Print a line for the user."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
