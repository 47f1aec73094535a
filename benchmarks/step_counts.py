"""What does a step send, and what do its micro-batches launch and take of the CPU? Counted on a CPU.

    python -m benchmarks.step_counts [--case NAME ...] [--no-time]

`benchmarks.judges.step_counts`, which imports nothing of radioplat, counts a run of two ranks with four micro-batches
a step each: a RADIO ViT of 24 blocks, which has with its heads about as many parameters as a ViT-L, and two teachers in
the same process; with either engine, without and with an average of the student that MESA compares it with. Collectives
are those of the first rank; ``others`` are DeepSpeed's. Then a run of one rank measures the CPU time of the training
thread, by part: ``loop`` is what neither the student, heads and losses, the student's average, backward passes with the
end of their graphs, the engine nor the teachers take.

The last line on stdout is one JSON object with the figures of each case.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
from itertools import chain
from pathlib import Path
from typing import Any

from benchmarks.host_reads import BATCH, MICRO_BATCHES, spec_of, write_images

STUDENT = {"type": "radio_vit_tiny_patch16", "kwargs": {"embed_dim": 32, "num_heads": 2, "depth": 24}}
AVERAGE = {"train": {"enable_ema": True}, "distill": {"mesa": {"weight": 0.1, "start_step": 0}}}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "deepspeed": ("deepspeed_engine:DeepSpeedEngine", {"train": {"engine": "deepspeed", "zero_stage": 2}}),
    "ddp": ("ddp_engine:DdpEngine", {"train": {"engine": "ddp"}}),
    "deepspeed with average": ("deepspeed_engine:DeepSpeedEngine", {"train": {"zero_stage": 2}}),
    "ddp with average": ("ddp_engine:DdpEngine", {"train": {"engine": "ddp"}}),
}
PARTS = {
    "teachers": "radioplat.teachers.serving.teacher_runner:TeacherRunner.__call__",
    "student": "radioplat.models.student.student:Student.forward",
    "heads and losses": "radioplat.objectives.objective:Objective.forward",
    "average": "radioplat.training.loop.average_student:AverageStudent.update",
    "backward": "radioplat.training.loop.optimizer_step:OptimizerStep._backward",
}


def main() -> None:
    """Count for each case, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--no-time", action="store_true", help="count only")
    given = parser.parse_args()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        write_images(folder / "images")
        for name in given.case:
            found[name] = _judged(folder, name, 2)
            if not given.no_time:
                found[name] |= _judged(folder, name, 1, "--time")
            print(name, json.dumps(found[name]), flush=True)
    print(json.dumps(found))


def train_rank() -> None:
    """Train as the rank that the environment names, on the run of the spec in the first argument."""
    import torch

    from radioplat.data.loading.run_data import open_reader
    from radioplat.data.loading.threads import load_micro_batches
    from radioplat.design.run import keep_data
    from radioplat.launch.preflight.steps import prepare
    from radioplat.spec.loading.load import load_spec
    from radioplat.teachers.serving.client import InlineTeacher
    from radioplat.training.loop import process_group
    from radioplat.training.loop.worker import run_worker
    from radioplat.training.watch.rank_context import RankContext

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    spec = load_spec(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    run, data = prepare(spec, "distill", Path(spec.results_dir) / f"rank_{rank}")
    keep_data(run, data)
    process_group.join("gloo")
    clients = {t.name: InlineTeacher(t, run.grids[t.name], "cpu") for t in run.frozen_teachers}

    def batches(start: int, stop: int, schedule: Any) -> Any:  # noqa: ANN401
        wanted = chain.from_iterable(schedule.of_rank(step, rank) for step in range(start, stop))
        return load_micro_batches(open_reader(*run.reader_arguments), wanted, threads=1, prefetch=2)

    run_worker(run, RankContext(rank, world, torch.device("cpu")), clients, batches)


def _judged(folder: Path, name: str, world: int, *options: str) -> dict[str, Any]:
    """Run the judge on a run of ``world`` ranks; return the first one's figures."""
    engine, changes = CASES[name]
    spec = spec_of(folder, f"{len(list(folder.iterdir()))}", STUDENT)
    for section, fields in chain(changes.items(), AVERAGE.items() if "average" in name else ()):
        spec[section] = {**spec[section], **fields}
    spec["train"] |= {"global_batch_size": BATCH * MICRO_BATCHES * world, "num_gpus": world}
    place = folder / f"{Path(spec['results_dir']).name}.json"
    place.write_text(json.dumps(spec), encoding="utf-8")
    parts = PARTS | {
        "engine": f"radioplat.training.engine.{engine}.__call__",
        "optimizer": f"radioplat.training.engine.{engine}.step",
    }
    command = [sys.executable, "-m", "benchmarks.judges.step_counts", "--own", "radioplat", *options]
    command += [word for part, method in parts.items() for word in ("--part", f"{part}={method}")]
    command += ["benchmarks.step_counts:train_rank", str(place)]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    group = {"WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ranks = []
    for rank in range(world):
        own = {**group, "RANK": rank, "LOCAL_RANK": rank, "OMP_NUM_THREADS": 1, "WANDB_MODE": "disabled"}
        environment = os.environ | {key: str(value) for key, value in own.items()}
        ranks.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment))
    outputs = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise SystemExit(f"{name}: a rank failed")
    return json.loads(outputs[0].strip().splitlines()[-1])


if __name__ == "__main__":
    main()
