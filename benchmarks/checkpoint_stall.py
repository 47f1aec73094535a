"""How long does a checkpoint keep the training thread from training, if one is saved every so many steps?

    python -m benchmarks.checkpoint_stall [--worlds 1 2] [--engines ddp ZeRO-2] [--rounds 3]

A ViT-S with AdamW and an EMA is trained on random images on a CPU, with one thread a rank; gloo connects the ranks.
Rounds of 20 steps (``--every``) alternate: one begins with a save, the next has none. The smaller the images, the
shorter the steps, and the larger the share of a save.

``stall_share`` is the time that the first rank's training thread spends in a save over that of the round: in the save
itself, and in the wait at the next save for what is still being written. ``slowdown`` is how much longer a round with a
save takes than one without: on a CPU the threads that gather and write take time from the step, also where the training
thread waits for nothing. Other processes disturb both, so ``cpu_share`` has the same as ``stall_share`` in CPU time of
the training thread, of which a wait takes none. The last line on stdout is JSON: medians by engine and number of ranks,
with least and most.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.engine_cost import ENGINES
from radioplat.common import terminal

WARM_UP = 3


class Training:
    """A student, its engine and average, and the checkpoints of a run, as a worker has them.

    Args:
        engine: key of :data:`ENGINES`.
        folder: of the run.
    """

    def __init__(self, engine: str, given: argparse.Namespace, folder: Path) -> None:
        import torch
        import torch.distributed as dist
        from torch import nn

        from radioplat.models.student.student import Student, StudentArchitecture
        from radioplat.spec.loading.load import load_spec
        from radioplat.training.checkpoints.persistence import Persistence, trainable
        from radioplat.training.engine.ema import Ema
        from radioplat.training.engine.registry import build_engine
        from radioplat.training.hooks.step_hook import StepHooks

        class Objective(nn.Module):
            """Pulls all features of a student to zero."""

            def __init__(self) -> None:
                super().__init__()
                architecture = StudentArchitecture(given.student, {"img_size": given.pixels}, img_size=given.pixels)
                self.student = Student(architecture)

            def forward(self, images: torch.Tensor) -> torch.Tensor:
                """A scalar, fp32."""
                features = self.student(images)
                return features.summary.float().square().mean() + features.spatial.float().square().mean()

        torch.manual_seed(0)
        objective = Objective()
        train = {**ENGINES[engine], "precision": given.precision, "enable_ema": True, "keep_last": 1}
        spec = load_spec({"train": train, "dataset": {"batch_size": given.batch}})
        run: Any = SimpleNamespace(spec=spec, folder=folder, task="distill", lease="", order_hash="", order_fields={})
        run.steps_per_epoch = run.total_steps = 10**6
        self.persistence = Persistence(run, dist.get_rank(), dist.get_world_size())
        self.persistence.restore_weights(objective)
        self.engine = build_engine(objective, spec, 1)
        self.persistence.restore_optimizer(self.engine)
        self.ema = Ema(self.engine, trainable(objective), dict, 0.999)
        self.hooks = StepHooks([self.ema])
        self.persistence.restore_hooks(self.hooks)
        self.images = torch.randint(0, 256, (given.batch, 3, given.pixels, given.pixels), dtype=torch.uint8)

    def step(self) -> None:
        """Take one step."""
        self.engine.backward(self.engine(self.images), last=True)
        self.engine.step()
        self.ema.step()
        self.persistence.state.global_step += 1

    def round(self, steps: int, saves: bool) -> dict[str, float]:
        """Take ``steps`` steps, after a save if it ``saves``.

        Returns:
            Seconds: ``save``, ``wait`` and ``total``; ``save_cpu`` and ``total_cpu`` of this thread's CPU time.
        """
        begin, begin_cpu = time.perf_counter(), time.thread_time()
        if saves:
            self.persistence.save(self.hooks)
        saved, saved_cpu = time.perf_counter(), time.thread_time()
        for _ in range(steps):
            self.step()
        stepped = time.perf_counter()
        self.persistence.finish()
        end, end_cpu = time.perf_counter(), time.thread_time()
        wall = {"save": saved - begin, "wait": end - stepped if saves else 0.0, "total": end - begin}
        return {**wall, "save_cpu": saved_cpu - begin_cpu, "total_cpu": end_cpu - begin_cpu}


def measure(engine: str, given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return the figures of one engine, on every rank."""
    training = Training(engine, given, folder)
    for _ in range(WARM_UP):
        training.step()
    training.persistence.save(training.hooks)  # the first one also creates files and buffers
    training.persistence.finish()
    rounds: dict[bool, list[dict[str, float]]] = {True: [], False: []}
    for number in range(given.rounds):
        for saves in (True, False) if number % 2 == 0 else (False, True):
            rounds[saves].append(training.round(given.every, saves))
    training.persistence.close()
    training.engine.close()
    pairs = list(zip(rounds[True], rounds[False], strict=True))
    return {
        "stall_share": _spread([(a["save"] + a["wait"]) / a["total"] for a, _ in pairs], 4),
        "cpu_share": _spread([a["save_cpu"] / a["total_cpu"] for a, _ in pairs], 4),
        "save_ms": _spread([1e3 * a["save"] for a, _ in pairs], 1),
        "save_cpu_ms": _spread([1e3 * a["save_cpu"] for a, _ in pairs], 1),
        "wait_ms": _spread([1e3 * a["wait"] for a, _ in pairs], 1),
        "slowdown": _spread([a["total"] / b["total"] - 1 for a, b in pairs], 4),
        "step_ms": _spread([1e3 * b["total"] / given.every for _, b in pairs], 1),
        "step_cpu_ms": _spread([1e3 * b["total_cpu"] / given.every for _, b in pairs], 1),
    }


def _spread(values: list[float], digits: int) -> list[float]:
    """Return the median, the least and the greatest value."""
    return [round(value, digits) for value in (statistics.median(values), min(values), max(values))]


def work(rank: int, world: int, port: int, given: argparse.Namespace, out: str) -> None:
    """Measure as one rank; the first one writes ``out``."""
    import torch

    from radioplat.training.loop import process_group

    group = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": 1}
    os.environ.update({name: str(value) for name, value in {**group, **place}.items()})
    torch.set_num_threads(1)
    process_group.join("gloo")
    found = {}
    for engine in given.engines:
        folder = Path(out).parent / f"{engine}_{world}"
        folder.mkdir(exist_ok=True)
        found[engine] = measure(engine, given, folder)
    if rank == 0:
        Path(out).write_text(json.dumps(found), encoding="utf-8")


def main() -> None:
    """Measure with each number of ranks, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", type=int, nargs="+", default=[1, 2], help="numbers of ranks")
    parser.add_argument("--engines", nargs="+", default=["ddp", "ZeRO-2"], choices=list(ENGINES))
    parser.add_argument("--precision", default="fp32", choices=["fp32", "bf16"])
    parser.add_argument("--student", default="vit_small_patch16_224", help="a ViT of timm")
    parser.add_argument("--pixels", type=int, default=112)
    parser.add_argument("--batch", type=int, default=4, help="images of a step and a rank")
    parser.add_argument("--every", type=int, default=20, help="steps from one save to the next")
    parser.add_argument("--rounds", type=int, default=3, help="of steps after a save, and as many of steps without")
    given = parser.parse_args()
    import torch.multiprocessing as processes

    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="checkpoint_stall") as home:
        for world in given.worlds:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            out = Path(home) / "found.json"
            processes.spawn(work, (world, port, given, str(out)), nprocs=world)
            for engine, figures in json.loads(out.read_text()).items():
                found[f"{engine} x{world}"] = figures
                terminal.note(f"{engine} x{world}: " + ", ".join(f"{name} {v}" for name, v in figures.items()))
    print(json.dumps({"every": given.every, "cores": os.cpu_count(), "student": given.student, "found": found}))


if __name__ == "__main__":
    main()
