"""The sides of ``benchmarks.elastic_loop``: ``python -m benchmarks.elastic_loop_sides SIDE WORK.json``.

Each runs in a process of its own and prints one JSON object of seconds a step. The loop is the product's
(``run_worker``), with a teacher that has its answers ready: it is called once a step, in the training thread, as the
step begins, and there it reads the clock.

``both_loops`` takes a step of a bare loop in that same place and leaves its time out of ours: so the two go on turn by
turn, a step each, and a slow second of the machine hits both.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

WIDTH = 384  # of ViT-S


@dataclass(frozen=True)
class Work:
    """What a side is given.

    Attributes:
        shards: a folder of photographs.
        size, batch: pixels a side of an image, images of a step, which is one micro-batch.
        warm_up, steps: those before the clock starts, and those that are timed.
        save_every: steps between two checkpoints; 0 saves at the end only, after the clock has stopped.
        scratch: an empty folder.
    """

    shards: str = ""
    size: int = 224
    batch: int = 4
    warm_up: int = 3
    steps: int = 24
    save_every: int = 0
    precision: str = "fp32"
    zero_stage: int = 0
    scratch: str = ""


class Known:
    """A teacher whose answers are made up beforehand; ``begins`` is called when a step takes one."""

    def __init__(self, name: str, answers: list, begins: Callable[[], None]) -> None:
        self.name, self._answers, self._begins = name, answers, begins

    def share(self, pixels, batch=None):
        """Nothing is sent."""
        return pixels

    def submit(self, shared, micro_batch: int):
        """See :class:`radioplat.teachers.serving.client.TeacherClient`."""

        def answer():
            self._begins()
            return self._answers[micro_batch % len(self._answers)]

        return answer

    def precision(self) -> str:
        """See :class:`radioplat.teachers.serving.client.TeacherClient`."""
        return "bfloat16"

    def held(self):
        """See :class:`radioplat.teachers.serving.client.TeacherClient`."""
        from radioplat.teachers.serving.client import Held

        return Held(1, 0.0, 0.0)


class Timed:
    """A run of our loop on batches in memory.

    Attributes:
        begins: when each step began; ``between`` is called at that moment, and counts for neither step.
        away: seconds that each ``between`` took.
    """

    def __init__(self, work: Work, between: Callable[[int], None] = lambda step: None) -> None:
        import torch

        from radioplat.design.run import keep_data
        from radioplat.launch.local import _set_single_process_environment
        from radioplat.launch.preflight.steps import prepare
        from radioplat.training.loop import process_group

        self._work, self._between = work, between
        self.begins: list[float] = []
        self.away: list[float] = []
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        _set_single_process_environment()
        process_group.join("nccl" if self.device.type == "cuda" else "gloo")
        folder = Path(work.scratch) / "results"
        self.run, data = prepare(_spec(work), "distill", folder / "distill")
        keep_data(self.run, data)
        self.batches = self._preload()
        self.answers = self._made_up()

    def go(self) -> None:
        """Take all steps."""
        from radioplat.training.loop.worker import run_worker
        from radioplat.training.watch.rank_context import RankContext

        teacher = self.run.teachers[0].name
        clients = {teacher: Known(teacher, self.answers, self._step_begins)}
        taken = lambda start, stop, schedule: itertools.islice(self.batches, start, stop)  # noqa: E731
        run_worker(self.run, RankContext(0, 1, self.device), clients, taken)

    def seconds(self) -> list[float]:
        """Of each timed step: from where it began to where the next did, without what lay between them."""
        ends, starts = self.begins[1:], [b + a for b, a in zip(self.begins, self.away, strict=True)]
        each = [end - start for end, start in zip(ends, starts, strict=False)]
        return each[self._work.warm_up :][: self._work.steps]

    def wait_for_device(self) -> None:
        """On a GPU: until all that was asked of it is done."""
        import torch

        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def _step_begins(self) -> None:
        self.wait_for_device()
        self.begins.append(time.perf_counter())
        self._between(len(self.begins) - 1)
        self.away.append(time.perf_counter() - self.begins[-1])

    def _preload(self) -> list:
        """All micro-batches of the run, decoded as a run decodes them."""
        from radioplat.data.loading.run_data import open_reader
        from radioplat.data.loading.threads import load_micro_batches

        reader = open_reader(*self.run.reader_arguments)
        return list(load_micro_batches(reader, iter(range(self.run.total_steps)), threads=2, prefetch=4))

    def _made_up(self) -> list:
        import torch

        from radioplat.models.features import Features
        from radioplat.teachers.serving.transport import pack

        generator = torch.Generator().manual_seed(0)
        rows, columns = self.run.grids[self.run.teachers[0].name]
        shapes = (self._work.batch, WIDTH), (self._work.batch, rows, columns, WIDTH)
        drawn = ([torch.randn(s, generator=generator).bfloat16() for s in shapes] for _ in range(4))
        return [pack(Features(summary, spatial, {}), 0.0) for summary, spatial in drawn]


def saving_loop(work: Work) -> dict[str, list]:
    """Seconds of each timed step of our loop, saving included, and whether a checkpoint was under way as it began."""
    written: list[bool] = []
    folder = Path(work.scratch) / "results" / "distill"

    def look(step: int) -> None:
        """A save is due at the end of every ``save_every``-th step; it is done when its folder has its name."""
        due = step // work.save_every * work.save_every
        written.append(due > 0 and not any(folder.glob(f"model_epoch_*_step_{due:05d}")))

    timed = Timed(work, look)
    timed.go()
    return {"steps": timed.seconds(), "written": written[work.warm_up :][: work.steps]}


def both_loops(work: Work) -> dict[str, float]:
    """Median seconds a step of our loop and of a bare one."""
    bare: list[Callable[[], Any]] = []
    timed = Timed(work, lambda step: bare[0]())
    bare.append(_bare_step(timed, work))
    timed.go()
    away = timed.away[work.warm_up :][: work.steps]
    return {"ours": statistics.median(timed.seconds()), "bare": statistics.median(away)}


def _bare_step(timed: Timed, work: Work) -> Callable[[], None]:
    """What one writes by hand around DeepSpeed: a batch from memory, forward, backward, step."""
    import torch

    from radioplat.design.tasks.features import build_student
    from radioplat.objectives.distill import DistillObjective, MicroBatch
    from radioplat.teachers.serving.transport import unpack
    from radioplat.training.engine.cpu_bf16 import arithmetic
    from radioplat.training.engine.registry import build_engine

    run, device = timed.run, timed.device
    name, view = run.teachers[0].name, run.student_view
    module = DistillObjective(build_student(run), run.teachers, view, run.spec.distill).to(device).train()
    engine = build_engine(module, run.spec, 1)
    ready = []
    for batch, packed in zip(timed.batches, itertools.cycle(timed.answers), strict=False):
        images = {view: torch.tensor(batch.views[view].shown).to(device)}
        weight, label = torch.tensor(batch.weight).to(device), torch.tensor(batch.label).to(device)
        ready.append(MicroBatch(images, weight, label, {name: unpack(packed).map(lambda t: t.to(device))}))
        if len(ready) == 8:
            break
    batches = itertools.cycle(ready)

    def step() -> None:
        with arithmetic(run.spec, device):
            losses = engine(next(batches))
        engine.backward(losses["loss"])
        engine.step()
        timed.wait_for_device()

    return step


def _spec(work: Work):
    import torch
    from safetensors.torch import save_file

    from radioplat.models.backbones.timm_backbone import TimmBackbone
    from radioplat.spec.loading.load import load_spec

    kind, weights = "vit_small_patch16_224", f"{work.scratch}/teacher.safetensors"
    torch.manual_seed(0)
    save_file(TimmBackbone(kind, num_classes=0).model.state_dict(), weights)
    total = work.warm_up + work.steps + 2  # the last save, at the end of the run, lies behind the clock
    teacher = {
        "name": "known",
        "model": {"backbone": {"type": kind}},
        "pretrained_teacher_model_path": weights,
        "mode": "combo",
        "loss_type": "MSE",
        "summary_loss_type": "cosine",
        "match_student_resolution": True,
    }
    return load_spec(
        {
            "results_dir": f"{work.scratch}/results",
            "model": {"backbone": {"type": kind}},
            "dataset": {
                "img_size": work.size,
                "batch_size": work.batch,
                "augmentation": {"views_per_image": 0},  # teachers are asked to the end
                "train_dataset": {"tar_data_sources": [{"root_dir": work.shards, "steps_per_epoch": total}]},
            },
            "train": {
                "precision": work.precision,
                "zero_stage": work.zero_stage,
                "num_epochs": 1,
                "max_steps": total,
                "checkpoint_interval": work.save_every or total,
                "checkpoint_interval_unit": "step",
                "optim": {"lr": 1e-4},
            },
            "distill": {"use_mlp": False, "target_norm": {"type": "none"}, "teacher": [teacher]},
        }
    )


def save(work: Work, path: Path) -> Path:
    """Write ``work`` where :func:`main` reads it."""
    path.write_text(json.dumps(asdict(work)))
    return path


SIDES = {"both_loops": both_loops, "saving_loop": saving_loop}


def main() -> None:
    """Run one side."""
    side, path = sys.argv[1:]
    print(json.dumps(SIDES[side](Work(**json.loads(Path(path).read_text())))), flush=True)


if __name__ == "__main__":
    main()
