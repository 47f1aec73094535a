"""What a channel is worth to the student; the least worthy go."""

from __future__ import annotations

import copy

import torch
import torch_pruning as tp
from torch import nn

from radioplat.spec.schema.prune import PruneConfig, PruneScore, RawScore


class ChannelScore:
    """Scores groups of channels that go together, each by the sum over the layers that they run through.

    ``magnitude`` needs nothing but the weights (Li et al. 2017; over groups: Fang et al. 2023, DepGraph). ``taylor``
    and ``hessian`` need gradients of the loss: call :meth:`see` after each backward.

    Args:
        seed: of ``random``.
    """

    def __init__(self, config: PruneConfig, seed: int = 0) -> None:
        norm = 1 if config.raw_prune_score is RawScore.L1 else 2
        self.needs_gradients = config.score in (PruneScore.taylor, PruneScore.hessian)
        self._random = torch.Generator().manual_seed(seed) if config.score is PruneScore.random else None
        self._squares: dict[nn.Parameter, torch.Tensor] = {}
        self._seen = 0
        if config.score is PruneScore.hessian:
            self._score = tp.importance.GroupHessianImportance(normalizer=None)
        elif config.score is PruneScore.taylor:
            self._score = tp.importance.GroupTaylorImportance(normalizer=None)
        else:
            self._score = tp.importance.GroupMagnitudeImportance(p=norm, normalizer=None)

    def see(self, student: nn.Module) -> None:
        """Take the gradients that one backward left in ``student``; the caller does not zero them between calls."""
        self._seen += 1
        if not isinstance(self._score, tp.importance.GroupHessianImportance):
            return
        # torch-pruning 1.6.1's own accumulate_grad forgets all but the last.
        for parameter in student.parameters():
            if parameter.grad is not None:
                old, new = self._squares.get(parameter, 0.0), parameter.grad.square().cpu()
                self._squares[parameter] = old + (new - old) / self._seen
        student.zero_grad()

    def of(self, student: nn.Module, copied: nn.Module) -> ChannelScore:
        """The same for a copy of the student that was seen.

        Raises:
            RuntimeError: gradients are needed, and none was seen.
        """
        if self.needs_gradients and not self._seen:
            raise RuntimeError("this score needs gradients: call see() after a backward")
        other, twins = copy.copy(self), dict(copied.named_parameters())
        other._squares = {twins[n]: self._squares[p] for n, p in student.named_parameters() if p in self._squares}
        return other

    def __call__(self, group: tp.dependency.Group, channels: int) -> torch.Tensor:
        """Worth of each of ``channels``, float ``[channels]``; never negative."""
        if self._random is not None:
            return torch.rand(channels, generator=self._random)
        for parameter, mean in self._squares.items():
            parameter.grad = mean  # the diagonal, where torch-pruning looks for it
        return self._score(group).abs().cpu()
