"""The two runs of the demonstration, each in a process of its own: left alone, and on a cluster that loses processes.

``python -m benchmarks.demonstration.runs alone|disturbed FOLDER``; the folder's ``options.json`` has kills, seconds,
students, steps and seed. The same command goes on from the last checkpoint; kills that came before count.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import ray

import radioplat
from benchmarks.family import NAMES, TEACHERS, counting, family_spec, member
from clusters.local import LocalCluster

ALONE, DISTURBED = "alone", "disturbed"
SIDE, BATCH, MICRO_BATCHES = 64, 4, 3
TEACHERS_SIDE = 128  # pixels; a third of the arithmetic of the 224 that they were trained at
WORKERS = (1, 3)
RECENT = 268_435_456  # bytes of answers that a teacher keeps: workers that are restarted ask again
KEEP_EVERY = 10  # steps: replay begins there
# What Ray's processes have imported when they start: what does not import Ray, and what does.
PRELOAD = (
    (
        "pandas",
        "pyarrow.dataset",
        "timm",
        "torch._dynamo",
        "deepspeed",
        "radioplat.training.loop.worker",
        "radioplat.teachers.serving.teacher_runner",
        "radioplat.spec.loading.load",
        "benchmarks.family_teacher",
    ),
    (
        "ray.data",
        "ray.train.torch",
        "radioplat.launch.ray.ray_worker",
        "radioplat.teachers.serving.pool_controller",
        "radioplat.data.loading.ray_stream",
    ),
)
OPTIONS, KILLS, COUNTS = "options.json", "kills.jsonl", "counts.txt"


@dataclass(frozen=True)
class Options:
    """What the command was given; kept in the folder, so that it goes on with the same.

    Attributes:
        kills: how many processes are killed.
        seconds: in which they should come.
        students: the first so many of `benchmarks.family`.
        seed: of the choice of processes and times.
        steps: of both runs; of the command's own choice if it is not given.
    """

    kills: int = 40
    seconds: float = 360.0
    students: int = 4
    seed: int = 0
    steps: int = 51

    @property
    def names(self) -> list[str]:
        """Names of the students."""
        return NAMES[: self.students]

    @property
    def samples(self) -> int:
        """Samples of a run."""
        return self.steps * BATCH * MICRO_BATCHES

    def write(self, home: Path) -> None:
        """Write them into the folder."""
        (home / OPTIONS).write_text(json.dumps(asdict(self)) + "\n")

    @classmethod
    def read(cls, home: Path) -> Options | None:
        """Return what the folder has; None of a new one."""
        path = home / OPTIONS
        return cls(**json.loads(path.read_text())) if path.exists() else None


def demo_spec(home: Path, options: Options) -> dict[str, Any]:
    """Return the spec of both runs: the first students of `benchmarks.family`, small enough for two cores."""
    spec = family_spec(home, options.steps)
    spec["model"]["backbone"]["cpe_max_size"] = SIDE
    # Little is asked for ahead: it is lost with the processes.
    spec["dataset"] |= {"img_size": SIDE, "batch_size": BATCH, "prefetch_batches": 1}
    spec["dataset"]["train_dataset"]["tar_data_sources"][0]["steps_per_epoch"] = options.steps
    for teacher in spec["distill"]["teacher"]:
        teacher["input_size"] = TEACHERS_SIDE
    spec["train"] |= {
        "global_batch_size": BATCH * MICRO_BATCHES,
        "min_workers": WORKERS[0],
        "max_workers": WORKERS[1],
        "reduction": "exact",
        "zero_stage": 1,
        "checkpoint_interval": 1,
        "keep_last": 2,
        "keep_every": KEEP_EVERY,
        "max_failures": 1000,
        "resize_interval_s": 3.0,
    }
    spec["distill"]["students"] = spec["distill"]["students"][: options.students]
    spec["teachers"] = {name: {"num_cpus": 0.5, "recent_bytes": RECENT} for name in TEACHERS}
    return spec


def student(home: Path, run: str, name: str) -> Path:
    """Return the folder of a student's run."""
    return member(home / run, name)


def alone(home: Path, options: Options) -> None:
    """Train in this process, undisturbed."""
    spec = demo_spec(home, options)
    spec["train"] |= {"min_workers": None, "max_workers": None}
    radioplat.distill(spec | {"results_dir": str(home / ALONE), "cluster": {"mode": "local"}}, say=say)


def disturbed(home: Path, options: Options) -> None:
    """Train on a cluster while processes are killed."""
    with counting(home / COUNTS), LocalCluster(nodes=2, preload=PRELOAD) as cluster:
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        spared = cluster._cluster.head_node.all_processes["raylet"][0].process.pid
        command = [sys.executable, "-m", "benchmarks.judges.killer", "--below", os.getpid(), "--spare", spared]
        command += ["--kills", options.kills, "--seconds", options.seconds, "--seed", options.seed]
        killer = subprocess.Popen([*map(str, command), "--log", str(home / KILLS)], stdout=sys.stderr)
        ended = threading.Event()
        keeper = threading.Thread(target=keep_nodes, args=(cluster, random.Random(options.seed), ended), daemon=True)
        keeper.start()
        try:
            place = {"mode": "ray", "address": cluster.address, "cpus_per_worker": 0.5, "cpus_per_decode": 0.5}
            spec = demo_spec(home, options) | {"results_dir": str(home / DISTURBED), "cluster": place}
            # What a teacher has answered outlives it, too.
            cache = {"dir": str(home / "features"), "write_interval_s": 0}
            radioplat.distill(spec | {"feature_cache": cache}, say=say)
        finally:
            ended.set()
            keeper.join()
            killer.terminate()
            killer.wait()


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
            try:
                cluster.add()
            except Exception as error:  # it was killed before it was ready
                say(f"a raylet did not start: {error}")
                due.append(time.monotonic() + 1)


def end(number: int, _: object) -> None:
    """End by a signal, and with it what was started; the signal may come again, from the process group."""
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


def say(line: str) -> None:
    """Print a line for the log."""
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    """Run one of the two."""
    signal.signal(signal.SIGTERM, end)
    home = Path(sys.argv[2]).resolve()
    options = Options.read(home)
    assert options is not None
    {ALONE: alone, DISTURBED: disturbed}[sys.argv[1]](home, options)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
        sys.exit(0)
    sys.exit(130)
