"""Importance scores of channels; those with the lowest scores are removed."""

from __future__ import annotations

import copy

import torch
import torch_pruning as tp
from torch import nn

from radioplat.spec.schema.prune import PruneConfig, PruneScore, RawScore


class ChannelScore:
    """Scores of groups of dependent channels: the sum over all layers that a channel runs through.

    ``magnitude`` needs only the weights (Li et al. 2017; over groups: Fang et al. 2023, DepGraph). ``taylor``
    and ``hessian`` need gradients of the loss: call :meth:`add_gradients` after each backward.

    Args:
        seed: for ``random``.
    """

    def __init__(self, config: PruneConfig, seed: int = 0) -> None:
        norm = 1 if config.raw_prune_score is RawScore.L1 else 2
        self.needs_gradients = config.score.needs_gradients
        self._random = torch.Generator().manual_seed(seed) if config.score is PruneScore.random else None
        self._squares: dict[nn.Parameter, torch.Tensor] = {}
        self._count = 0
        if config.score is PruneScore.hessian:
            self._score = tp.importance.GroupHessianImportance(normalizer=None)
        elif config.score is PruneScore.taylor:
            self._score = tp.importance.GroupTaylorImportance(normalizer=None)
        else:
            self._score = tp.importance.GroupMagnitudeImportance(p=norm, normalizer=None)

    def add_gradients(self, student: nn.Module) -> None:
        """Add the gradients of one backward of ``student``; the caller does not zero them between calls."""
        self._count += 1
        if not isinstance(self._score, tp.importance.GroupHessianImportance):
            return
        # accumulate_grad of torch-pruning 1.6.1 uses only the last gradient.
        for parameter in student.parameters():
            if parameter.grad is not None:
                old, new = self._squares.get(parameter, 0.0), parameter.grad.square().cpu()
                self._squares[parameter] = old + (new - old) / self._count
        student.zero_grad()

    def of(self, student: nn.Module, copied: nn.Module) -> ChannelScore:
        """Return the scores for a copy of the student whose gradients were added.

        Raises:
            RuntimeError: gradients are needed, and none were added.
        """
        if self.needs_gradients and not self._count:
            raise RuntimeError("this score needs gradients: call add_gradients() after a backward")
        other, twins = copy.copy(self), dict(copied.named_parameters())
        other._squares = {twins[n]: self._squares[p] for n, p in student.named_parameters() if p in self._squares}
        return other

    def __call__(self, group: tp.dependency.Group, channels: int) -> torch.Tensor:
        """Return the score of each channel, float ``[channels]``; never negative."""
        if self._random is not None:
            return torch.rand(channels, generator=self._random)
        for parameter, mean in self._squares.items():
            parameter.grad = mean  # the Hessian's diagonal, which torch-pruning reads here
        return self._score(group).abs().cpu()
