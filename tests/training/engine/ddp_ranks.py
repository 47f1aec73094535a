"""What ranks of a process group find about ddp beside DeepSpeed; :func:`work` is one of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from radioplat.errors import TrainingError
from radioplat.spec.loading.load import load_spec
from radioplat.spec.schema.root import Spec
from radioplat.training.engine import ddp_engine, deepspeed_engine
from radioplat.training.engine.engine import Engine
from radioplat.training.engine.registry import build_engine
from radioplat.training.loop import process_group

STEPS, MICRO = 20, 4
ENGINES: dict[str, dict[str, Any]] = {
    "ddp": {"engine": "ddp"},
    **{f"ZeRO-{stage}": {"zero_stage": stage} for stage in (0, 1, 2)},
}
WIDTH = 16


class Taught(nn.Module):
    """Two blocks of attention over four tokens, whose output is pulled towards a fixed function of the input."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Linear(6, WIDTH), nn.Linear(WIDTH, 3)
        layers = (nn.TransformerEncoderLayer(WIDTH, 2, 32, 0.0, batch_first=True, norm_first=True) for _ in range(2))
        self.blocks = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scalar, fp32; of floats ``[B, 4, 6]``."""
        y = self.head(self.blocks(self.embed(x.to(self.embed.weight.dtype))))
        return (y.float() - 2 * x[..., :3].sin()).square().mean()


class Choice(nn.Module):
    """Layers of which each micro-batch uses some; ``never`` comes last, so its gradient is awaited first."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(6, 5)
        self.heads = nn.ModuleList(nn.Linear(5, 3) for _ in range(3))
        self.never = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, used: list[int]) -> torch.Tensor:
        """Scalar, fp32."""
        y = self.body(x.to(self.body.weight.dtype)).tanh()
        return sum((self.heads[i](y).float() - i).square().mean() for i in used)


class Twice(nn.Module):
    """A layer that reentrant checkpointing uses, and computes gradients of, twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.layer = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scalar, fp32."""
        y = self.first(x)
        for _ in range(2):
            y = checkpoint(self.layer, y, use_reentrant=True)
        return y.sum()


def spec_of(engine: str, precision: str, optim: dict[str, Any] | None = None, **train: Any) -> Spec:
    """The spec of a run with this engine."""
    section = {"precision": precision, "optim": optim or {"lr": 0.01, "weight_decay": 0.05}, "clip_grad_norm": 1.0}
    return load_spec({"train": {**section, **ENGINES[engine], **train}, "dataset": {"batch_size": 2}})


def batch_of(step: int, place: int) -> torch.Tensor:
    """A micro-batch of :class:`Taught`."""
    return torch.randn(5, 4, 6, generator=torch.Generator().manual_seed(100 * step + place))


def step(engine: Engine, number: int) -> float:
    """One step of :class:`Taught`; the sum of this rank's losses."""
    total, rank, world = 0.0, dist.get_rank(), dist.get_world_size()
    for place in range(rank, MICRO, world):
        loss = engine(batch_of(number, place))
        engine.backward(loss, last=place + world >= MICRO)
        engine.step()
        total += float(loss.detach())
    return total


def losses_of(engine: str, precision: str) -> torch.Tensor:
    """The mean loss of each step of :class:`Taught`, float64 ``[steps]``."""
    run = build_engine(Taught(), spec_of(engine, precision), MICRO // dist.get_world_size())
    losses = torch.tensor([step(run, number) for number in range(STEPS)], dtype=torch.float64) / MICRO
    dist.all_reduce(losses)
    assert run.was_step_applied()
    return losses


@contextlib.contextmanager
def counted() -> Iterator[list[str]]:
    """Note the collectives of torch that are called in the block, with ``backward`` if a backward pass runs."""
    calls: list[str] = []
    names = ("all_reduce", "reduce", "broadcast", "all_gather_into_tensor", "reduce_scatter_tensor", "barrier")
    before = {name: getattr(dist, name) for name in names}
    backward, inside = torch.Tensor.backward, []

    def noting(name):
        def call(*args, **kwargs):
            calls.append(f"backward {name}" if inside else name)
            return before[name](*args, **kwargs)

        return call

    def run(tensor, *args, **kwargs):
        inside.append(True)
        try:
            return backward(tensor, *args, **kwargs)
        finally:
            inside.pop()

    for name in names:
        setattr(dist, name, noting(name))
    torch.Tensor.backward = run
    try:
        yield calls
    finally:
        torch.Tensor.backward = backward
        for name in names:
            setattr(dist, name, before[name])


@contextlib.contextmanager
def buckets(size: int) -> Iterator[None]:
    """Let engines exchange gradients in messages of ``size`` elements."""
    modules = (ddp_engine, deepspeed_engine)
    before = [module.BUCKET for module in modules]
    try:
        for module in modules:
            module.BUCKET = size
        yield
    finally:
        for module, value in zip(modules, before, strict=True):
            module.BUCKET = value


def collectives_of(precision: str) -> list[list[str]]:
    """Collectives of each micro-batch of two steps, forward to update."""
    with buckets(500):
        run = build_engine(Taught(), spec_of("ddp", precision), 3)
    found = []
    for number in range(2):
        for place in range(3):
            with counted() as calls:
                run.backward(run(batch_of(number, place)), last=place == 2)
                run.step()
            found.append(list(calls))
    return found


def choices(engine: str, precision: str, used: list[list[int]]) -> dict[str, Any]:
    """Steps of :class:`Choice` of two micro-batches, of which micro-batch ``i`` uses the layers ``used[i]``.

    Returns:
        The weights after them, on rank 0, and by step the collectives in the last backward pass.
    """
    module = Choice()
    with buckets(16):
        run = build_engine(module, spec_of(engine, precision, {"optim": "sgd", "lr": 0.05, "weight_decay": 0.1}), 2)
    within = []
    for number in range(4):
        for place in range(2):
            x = torch.randn(3, 6, generator=torch.Generator().manual_seed(10 * number + 2 * dist.get_rank() + place))
            with counted() as calls:
                run.backward(run(x, used[place]), last=place == 1)
            run.step()
        within.append([call.startswith("backward") for call in calls])
    return {"weights": run.full_state(dict(module.named_parameters()), ()), "within": within}


def overflow(precision: str) -> dict[str, Any]:
    """A step in which the gradients of one rank are infinite, between others."""
    moments = ("exp_avg", "exp_avg_sq")
    quiet, other = (Taught() for _ in range(2))
    runs = [
        build_engine(module, spec_of("ddp", precision), MICRO // dist.get_world_size()) for module in (quiet, other)
    ]
    for run in runs:
        step(run, 0)
    names = dict(other.named_parameters())
    before = runs[1].full_state(names, moments)
    factor = float("inf") if dist.get_rank() == dist.get_world_size() - 1 else 1.0
    for place in range(MICRO // dist.get_world_size()):
        last = place + 1 == MICRO // dist.get_world_size()
        runs[1].backward(runs[1](batch_of(9, place)) * (factor if place == 0 else 1.0), last=last)
        runs[1].step()
    applied, after = runs[1].was_step_applied(), runs[1].full_state(names, moments)
    later = [[step(run, number) for number in (1, 2)] for run in runs]
    return {"applied": applied, "before": before, "after": after, "later": later}


def twice() -> str:
    """The error of a gradient that is computed twice, or an empty text."""
    with buckets(1):
        run = build_engine(Twice(), spec_of("ddp", "fp32"), 1)
    try:
        run.backward(run(torch.ones(2, 4, requires_grad=True)))
    except TrainingError as error:
        return str(error)
    return ""


def overlapping(stage: int, precision: str) -> torch.Tensor:
    """Losses of DeepSpeed with ``overlap_comm`` and several buckets."""
    before = deepspeed_engine._overlaps
    deepspeed_engine._overlaps = lambda: True
    try:
        with buckets(500):
            return losses_of(f"ZeRO-{stage}", precision)
    finally:
        deepspeed_engine._overlaps = before


def find() -> dict[str, Any]:
    """Everything that is looked at with any number of ranks."""
    both = ("fp32", "bf16")
    found: dict[str, Any] = {f"losses {e} {p}": losses_of(e, p) for e in ENGINES for p in both}
    return found | {f"overflow {p}": overflow(p) for p in both}


def work(folder: Path) -> None:
    """One of two ranks."""
    torch.set_num_threads(1)
    process_group.join("gloo")
    rank, both = dist.get_rank(), ("fp32", "bf16")
    found = find()
    found |= {f"collectives {p}": collectives_of(p) for p in both}
    found |= {f"overlap {stage} {p}": overlapping(stage, p) for stage in (1, 2) for p in both}
    found["twice"] = twice()
    uses = {"the first": [[0, 1], [1]], "by rank": [[0, rank], [rank]]}
    for name, used in uses.items():
        # At stage 2 DeepSpeed waits for ever if ranks use other layers: they then call other collectives.
        engines = ("ddp", "ZeRO-0", "ZeRO-2") if name == "the first" else ("ddp", "ZeRO-0")
        found |= {f"choice {name} {engine}": choices(engine, "fp32", used) for engine in engines}
    torch.save(found, folder / f"{rank}.pt")
