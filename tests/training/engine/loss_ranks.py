"""What a rank of ``test_loss_state`` runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from radioplat.data.batch import Batch
from radioplat.losses.base.criterion import Pointwise
from radioplat.losses.terms.angle import Angle
from radioplat.losses.terms.feature import mse
from radioplat.losses.terms.tangent_sphere import TangentSphere
from radioplat.losses.weighting.balance import TeacherBalance
from radioplat.spec.schema.distill import Balance
from radioplat.training.engine.loss_statistics import LossStatistics

D, STEPS, MICRO = 6, 4, 3


class Losses(nn.Module):
    """All that keep statistics, behind a layer that learns."""

    def __init__(self) -> None:
        super().__init__()
        self.student = nn.Linear(D, D)
        self.criteria = nn.ModuleDict({"t/summary": Angle(D), "t/x": TangentSphere(D, 24), "t/y": Pointwise(mse)})
        self.balance = TeacherBalance(["t", "u"], Balance.loss_scale)

    def forward(self, teacher: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Sum of all losses of a micro-batch, scalar."""
        student = self.student(teacher.to(self.student.weight.dtype)).float()
        total = torch.zeros(())
        for criterion in self.criteria.values():
            values, counts = criterion(student, teacher, weight)
            total = total + (values * counts).sum()
        # a loss that no optimizer step changes, so that any cut can be compared
        self.balance.add_loss("t", teacher.square().mean(), weight.sum())
        return total


def micro_batch(step: int, place: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(10 * step + place)
    weight = torch.ones(3)
    weight[0] = float(place != 1)  # a sample that proved unreadable
    return 1 + torch.randn(3, D, generator=generator), weight


def batch(real: bool) -> Batch:
    """A micro-batch, or padding."""
    ids = np.arange(3)
    return Batch(0 if real else -1, {}, ids, ids, np.ones(3, np.float32), ids)


def run_steps(rank: int, world: int, losses: Losses | None = None, start: int = 0, stop: int = STEPS) -> LossStatistics:
    """The steps as ``world`` ranks share them, padded to the same number, one step skipped."""
    losses = losses or Losses()
    state = LossStatistics(losses)
    for step in range(start, stop):
        for turn in range(-(-MICRO // world)):
            place = turn * world + rank
            state.begin_micro_batch(step, batch(place < MICRO))
            losses(*micro_batch(step, place))
        state.step(commit=step != 1)
    return state


def main(folder: Path) -> None:
    """One rank: write its statistics into ``folder``."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.save(run_steps(rank, dist.get_world_size()).state_dict(), folder / f"{rank}.pt")
    dist.destroy_process_group()
