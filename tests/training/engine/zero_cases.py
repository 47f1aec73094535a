"""Small runs at every ZeRO stage and with ddp, on one worker or on two.

All cases go through one process group: joining it costs more than they do.
"""

from __future__ import annotations

import gc
import itertools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from forked import run_ranks
from torch import nn

from radioplat.common.collectives import broadcast_object
from radioplat.optim.optimizer import MOMENTS
from radioplat.spec.schema.dataset import DatasetConfig
from radioplat.spec.schema.root import Spec
from radioplat.spec.schema.train import EngineName, OptimConfig, OptimizerName, Precision, TrainConfig
from radioplat.training.engine.ema import Ema
from radioplat.training.engine.registry import build_engine
from radioplat.training.loop import process_group

MICRO, HALF = 4, 3
STEPS = {"adamw": 6, "sgd": 6, "lamb": 20}
TICKS = 32  # micro-batches of the step that adds up small gradients
State = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Case:
    """What of ``train`` a run is made with."""

    precision: str
    stage: int
    offload: bool = False
    optimizer: str = "adamw"
    engine: str = "deepspeed"

    def __str__(self) -> str:
        kind = "ddp" if self.engine == "ddp" else f"{self.stage}{' offload' * self.offload}"
        return f"{self.precision} {kind} {self.optimizer}"

    @property
    def plain(self) -> Case:
        """The same run with as little cut up as its precision allows."""
        return replace(self, stage=int(self.precision != "fp32"), offload=False, engine="deepspeed")


# Stage 0 in 16 bits runs as 1, and cannot be offloaded.
FP32 = [Case("fp32", 0), *(Case("fp32", stage, away) for stage in (1, 2, 3) for away in (False, True))]
BF16 = [Case("bf16", stage, away) for stage in (1, 2, 3) for away in (False, True)]
DDP = [Case(precision, 0, engine="ddp") for precision in ("fp32", "bf16")]
FEW = [case for case in BF16 if case.offload == (case.stage == 2)]
MATRIX = [
    *(*FP32, *BF16, *DDP),
    *(replace(case, optimizer="lamb") for case in (*FP32, *FEW, *DDP)),
    *(replace(case, optimizer="sgd") for case in (*FP32, *FEW, *DDP) if case.precision == "bf16" or case.stage != 1),
]
# What is saved at one loads at the other, each stage at each other one, and on and off the host; with it how many
# workers save and how many load.
PAIRS = [
    *((Case("fp32", a, a > b), Case("fp32", b, b > a)) for a, b in itertools.permutations(range(4), 2)),
    *((Case("fp32", stage, away), Case("fp32", stage, not away)) for stage in (1, 2, 3) for away in (False, True)),
    *((Case("bf16", a, a == 2), Case("bf16", b, b == 2)) for a, b in itertools.permutations((1, 2, 3), 2)),
    (Case("fp32", 3, optimizer="lamb"), Case("fp32", 1, True, "lamb")),
    (Case("fp32", 1, True, "sgd"), Case("fp32", 2, optimizer="sgd")),
    *((DDP[0], Case("fp32", stage)) for stage in range(4)),
    *((Case("fp32", stage), DDP[0]) for stage in range(4)),
    *((DDP[1], Case("bf16", stage)) for stage in (1, 2, 3)),
    *((Case("bf16", stage), DDP[1]) for stage in (1, 2, 3)),
    (replace(DDP[0], optimizer="lamb"), Case("fp32", 2, optimizer="lamb")),
    (Case("fp32", 1, optimizer="lamb"), replace(DDP[0], optimizer="lamb")),
]
MOVES = [(*pair, *worlds) for pair, worlds in zip(PAIRS, itertools.cycle([(2, 1), (1, 2), (2, 2)]), strict=False)]
# Begun by one number of workers at one stage, gone on with by the other at another.
GONE_ON = [
    (Case("fp32", 3, optimizer="lamb"), Case("fp32", 0, optimizer="lamb")),
    (Case("fp32", 1, optimizer="lamb"), Case("fp32", 2, True, "lamb")),
    (Case("fp32", 2, True), Case("fp32", 3)),
    (DDP[0], Case("fp32", 2)),
    (Case("fp32", 2), DDP[0]),
    (Case("fp32", 3, optimizer="lamb"), replace(DDP[0], optimizer="lamb")),
]
# What one worker runs: what the others are compared with, and what two take up.
ALONE = {case.plain for case in MATRIX} | {old for old, *_ in GONE_ON} | {old for old, _, n, _ in MOVES if n == 1}


class Tiny(nn.Module):
    """Odd sizes, so that the cut between two ranks goes through parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 9), nn.LayerNorm(9), nn.GELU(), nn.Linear(9, 7), nn.Linear(7, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Mean squared distance to a fixed target, fp32."""
        y = self.body(x.to(self.body[0].weight.dtype))
        return (y.float() - x[:, :3].sin()).square().mean()


class Sums(nn.Module):
    """The gradient of a micro-batch is what is put in."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A scalar, fp32."""
        return (self.weight.float() * x).sum()


class Run:
    """An engine over a module, with an average."""

    def __init__(
        self, case: Case, module: nn.Module, micro: int, clip: float, optim: OptimConfig, begin: State | None = None
    ) -> None:
        cut = {"precision": Precision(case.precision), "zero_stage": case.stage, "offload": case.offload}
        cut |= {"engine": EngineName(case.engine)}
        train = TrainConfig(clip_grad_norm=clip, optim=replace(optim, optim=OptimizerName(case.optimizer)), **cut)
        spec = Spec(train=train, dataset=DatasetConfig(batch_size=5))
        self.moments = MOMENTS[spec.train.optim.optim]
        if begin:
            module.load_state_dict({k: v for k, v in begin.items() if k in module.state_dict()})
        self.engine, self.names = build_engine(module, spec, micro), dict(module.named_parameters())
        if begin:
            self.engine.load_full_state(self.names, self.moments, begin, HALF)
        self.ema = Ema(self.engine, self.names, dict, 0.8)
        if begin:
            self.ema.load_state_dict({k.removesuffix(".ema"): v for k, v in begin.items() if k.endswith(".ema")})

    def backward(self, x: torch.Tensor, last: bool) -> float:
        """One micro-batch; its loss."""
        loss = self.engine(x)
        self.engine.backward(loss, last=last)
        self.engine.step()
        return float(loss.detach())

    def state(self) -> State:
        """Everything that a checkpoint keeps, on every rank, as each reads all of it."""
        whole = self.engine.full_state(self.names, self.moments)
        return broadcast_object(whole | {f"{name}.ema": value for name, value in self.ema.state_dict().items()})


def start(case: Case, begin: State | None = None) -> Run:
    """A run that is about to take its first step, or the one after those of ``begin``."""
    torch.manual_seed(0)
    return Run(case, Tiny(), MICRO // dist.get_world_size(), 0.3, OptimConfig(lr=0.01, weight_decay=0.1), begin)


def train(case: Case, begin: State | None = None) -> dict[str, Any]:
    """All steps, or those after :data:`HALF`.

    Returns:
        ``losses``: mean over a step's micro-batches, float64 ``[steps]``; ``half`` and ``end``: weights, moments and
        ``<name>.ema`` after :data:`HALF` steps and after all.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    run, losses, half = start(case, begin), [], begin
    for step in range(HALF if begin else 0, STEPS[case.optimizer]):
        total = 0.0
        for place in range(rank, MICRO, world):
            x = torch.randn(5, 6, generator=torch.Generator().manual_seed(10 * step + place))
            total += run.backward(x, place + world >= MICRO)
        assert run.engine.was_step_applied()
        run.ema.step()
        losses.append(total)
        if step + 1 == HALF:
            half = run.state()
    mean = torch.tensor(losses, dtype=torch.float64) / MICRO
    dist.all_reduce(mean)
    return {"losses": mean, "half": half, "end": run.state()}


def add_up(case: Case) -> torch.Tensor:
    """The gradient of a step of one micro-batch of 1 and many of 2^-9, as fp32 holds it, whole.

    SGD without momentum at rate 1 makes it the step. Each number, and the division by their count, is exact in bf16,
    which has 8 bits: there 1 + 2^-9 is 1.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    optim = OptimConfig(lr=1.0, momentum=0.0, weight_decay=0.0)
    run = Run(replace(case, optimizer="sgd"), Sums(), TICKS // world, 0.0, optim)
    for place in range(rank, TICKS, world):
        run.backward(torch.full((3, 5), 1.0 if place == 0 else 2**-9), place + world >= TICKS)
    return -run.state()["weight"]


def moved(old: State, new: Case) -> list[str]:
    """What of ``old`` is not the same, bit for bit, once an engine has taken it up."""
    state = start(new, old).state()
    assert set(state) == set(old)
    return [name for name in old if not torch.equal(state[name], old[name])]


def work(folder: Path) -> None:
    """One of two workers: all cases, and what one worker has begun, to its end."""
    torch.set_num_threads(1)
    process_group.join("gloo")
    gc.freeze()  # stage 3 collects garbage at each start: half a second for all that was imported
    alone = torch.load(folder / "1.pt")
    found: dict[str, Any] = {str(case): train(case) for case in MATRIX}
    for case in (*FP32, *BF16, *DDP):
        found[f"{case} sum"] = add_up(case)
    for old, new, before, after in MOVES:
        if after == 2:
            found[f"{old} to {new}"] = moved((found if before == 2 else alone)[str(old)]["half"], new)
    for old, new in GONE_ON:
        found[f"{old} goes on {new}"] = train(new, alone[str(old)]["half"])
    if dist.get_rank() == 0:
        torch.save(found, folder / "2.pt")


def start_two(folder: Path) -> dict[str, Any]:
    """What two workers find; ``folder`` holds in ``1.pt`` what one has found."""
    run_ranks(work, folder, seconds=240)
    return torch.load(folder / "2.pt")
