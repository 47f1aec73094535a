"""Saves of two ranks, or of one, whose steps go on meanwhile; each function is a rank's program."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from radioplat.errors import RadioplatError
from radioplat.models.heads import HeadArchitecture
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.spec.loading.load import load_spec
from radioplat.training.checkpoints.persistence import Persistence, trainable
from radioplat.training.engine import whole_tensors
from radioplat.training.engine.batchnorm_state import BatchNormStatistics
from radioplat.training.engine.ema import Ema
from radioplat.training.engine.registry import build_engine
from radioplat.training.engine.whole_tensors import WholeTensors
from radioplat.training.hooks.step_hook import StepHook, StepHooks
from radioplat.training.loop import process_group

ENGINES = {"ddp": {"engine": "ddp"}, **{f"ZeRO-{stage}": {"zero_stage": stage} for stage in range(4)}}
SAVED, LAST = 2, 5  # steps


class Objective(nn.Module):
    """A student with BatchNorm, one frozen weight and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.student = Student(StudentArchitecture("test_resnet", heads=(HeadArchitecture("a", 4),)))
        next(self.student.backbone.parameters()).requires_grad_(False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """A scalar, fp32."""
        features = self.student(images)
        summary = self.student.head("a", features).summary
        return (summary.float() - 1).square().mean() + (features.spatial.float() - 1).square().mean()


class Counter(StepHook):
    """A hook of a user, with a number and a tensor that change in each step."""

    name = "own"

    def __init__(self) -> None:
        self.steps, self.tensor = [], torch.zeros(3)

    def end_step(self, record: Any) -> None:
        """Count."""
        self.steps.append(len(self.steps))
        self.tensor += 1

    def state_dict(self) -> dict[str, Any]:
        """Both."""
        return {"steps": self.steps, "tensor": self.tensor}


class Training:
    """A run with checkpoints, without data or teachers."""

    def __init__(self, folder: Path, engine: str, **train: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        torch.manual_seed(0)
        objective = Objective().train()
        section = {"precision": "fp32", "enable_ema": True, "optim": {"lr": 0.01}, **ENGINES[engine], **train}
        spec = load_spec({"train": section, "dataset": {"batch_size": 4}})
        run: Any = SimpleNamespace(spec=spec, folder=folder, task="distill", lease="", order_hash="", order_fields={})
        run.steps_per_epoch, run.total_steps = 100, 100
        self.persistence = Persistence(run, dist.get_rank(), dist.get_world_size())
        self.persistence.restore_weights(objective)
        self.batchnorm = BatchNormStatistics(objective)
        self.engine = build_engine(objective, spec, 1)
        self.persistence.restore_optimizer(self.engine)
        self.batchnorm.sync()
        self.ema = Ema(self.engine, trainable(objective), dict, 0.9)
        self.hooks = StepHooks([self.batchnorm, self.ema, Counter()])
        self.persistence.restore_hooks(self.hooks)

    def step(self) -> None:
        """One step on images that depend on its number and the rank."""
        state = self.persistence.state
        generator = torch.Generator().manual_seed(10 * state.global_step + dist.get_rank())
        images = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8, generator=generator)
        self.engine.backward(self.engine(images), last=True)
        self.engine.step()
        self.hooks.end_step(SimpleNamespace(skipped=False, moved=True))
        state.global_step += 1
        state.optimizer_steps += 1

    def close(self) -> None:
        """End threads, and free the engine."""
        self.persistence.close()
        self.engine.close()


def both_ways(folder: Path) -> None:
    """Save with each engine, at once and behind steps that have changed everything before the first byte is sent."""
    torch.set_num_threads(1)
    process_group.join("gloo")
    gather = WholeTensors.gather
    for engine in ENGINES:
        at_once = Training(folder / engine / "at_once", engine, async_checkpoint=False)
        for _ in range(SAVED):
            at_once.step()
        at_once.persistence.save(at_once.hooks)
        at_once.close()
        behind, stepped = Training(folder / engine / "behind", engine), threading.Event()
        WholeTensors.gather = lambda self, stepped=stepped: (stepped.wait(60), gather(self))[1]
        while behind.persistence.state.global_step < LAST:
            behind.step()
            if behind.persistence.state.global_step == SAVED:
                behind.persistence.save(behind.hooks)
        stepped.set()
        behind.step()
        behind.persistence.finish()
        behind.close()
        WholeTensors.gather = gather


def one_cannot_copy(folder: Path) -> None:
    """Rank 1 fails in its thread at the second save; print what each rank learns at the third."""
    process_group.join("gloo")
    training = Training(folder, "ZeRO-2")
    training.step()
    training.persistence.save(training.hooks)
    training.step()
    training.persistence.finish()
    if dist.get_rank() == 1:
        WholeTensors._finish_copy = lambda self: MemoryError("no pinned memory")
    training.persistence.save(training.hooks)
    training.step()
    try:
        training.persistence.save(training.hooks)
    except RadioplatError as error:
        print(f"agreed {error.agreed}: {error}")
    training.close()


def one_is_killed(folder: Path) -> None:
    """Rank 1 ends in the middle of its second message to rank 0, which prints what became of the save."""
    process_group.join("gloo")
    whole_tensors.BUCKET = 1000
    training = Training(folder, "ZeRO-1")
    training.step()
    training.persistence.save(training.hooks)
    training.persistence.finish()
    training.step()
    send, sent = whole_tensors.collectives.send, []

    def dies(values: torch.Tensor, *rest: Any) -> None:
        """End the process at the third message."""
        sent.append(send(values, *rest))
        if len(sent) == 3:
            os._exit(0)

    whole_tensors.collectives.send = dies
    training.persistence.save(training.hooks)
    if dist.get_rank() == 1:
        threading.Event().wait(60)
    outcome = training.persistence._writer.wait()
    print(f"newest {outcome.newest.name}, fatal: {bool(outcome.fatal)}", flush=True)
    os._exit(0)
