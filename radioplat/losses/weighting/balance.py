"""Weights of teachers by the running mean of their losses (``distill.balance``)."""

from __future__ import annotations

import torch

from radioplat.losses.base.running_statistics import Running
from radioplat.spec.schema.distill import Balance

DECAY = 0.99  # per step: the mean is effectively over the last hundred steps
_FLOOR = 1e-8


class TeacherBalance(Running):
    """Factors of the teachers' losses, multiplied by their ``loss_lambda``.

    m_t is the running mean over samples of teacher t's loss, before its lambda, as of the previous step:

    - ``fixed``: 1, and nothing is counted;
    - ``loss_scale``: 1 / m_t, so that every teacher's loss is about 1;
    - ``adaloss``: T (1 / m_t) / sum over teachers of 1 / m. AdaLoss (Hu et al. 2019) weights losses by the inverse of
      their means, which minimises their geometric mean; the published weights are defined up to a factor, and here they
      sum to the number of teachers T, as ``fixed`` ones do.

    No gradient flows through m. It decays by :data:`DECAY` a step; a teacher without data yet (in the first step) has
    factor 1, and with ``adaloss`` then all have.

    Args:
        names: of all teachers.
    """

    def __init__(self, names: list[str], rule: Balance) -> None:
        fixed = rule is Balance.fixed
        super().__init__(**({} if fixed else dict(total=(len(names),), samples=(len(names),))))
        self.names, self.rule = names, rule

    @property
    def counts(self) -> bool:
        """Whether the teachers' losses are counted; not with ``fixed``."""
        return self.rule is not Balance.fixed

    @property
    def means(self) -> torch.Tensor:
        """m, float64 ``[teachers]``; NaN without data."""
        return self.total / self.samples

    def factors(self, active: list[str]) -> dict[str, torch.Tensor | float]:
        """Return a scalar factor by name for each of ``active``, the teachers that are not quarantined."""
        if self.rule is Balance.fixed:
            return dict.fromkeys(active, 1.0)
        means = self.means[[self.names.index(name) for name in active]].clamp(min=_FLOOR)
        if self.rule is Balance.loss_scale:
            factors = torch.where(means.isfinite(), 1 / means, 1.0)
        else:
            factors = len(active) / means / (1 / means).sum()
            factors = torch.where(factors.isfinite().all(), factors, 1.0)
        return dict(zip(active, factors.float(), strict=True))

    @torch.no_grad()
    def add_loss(self, name: str, mean: torch.Tensor, samples: torch.Tensor) -> None:
        """Count a micro-batch in which ``name`` had this ``mean`` loss over ``samples`` (the sum of their weights)."""
        if not self.counts:
            return
        mine = torch.zeros_like(self.total)
        mine[self.names.index(name)] = 1
        # where, not a product: without samples the mean may be NaN
        mean = torch.where(samples > 0, mean, 0.0)
        self.add("total", mine * (mean * samples))
        self.add("samples", mine * samples)

    def update(self, sums: dict[str, torch.Tensor]) -> None:
        """End a step: multiply the running sums by :data:`DECAY`, and add ``sums`` of all ranks."""
        for name, value in sums.items():
            self._buffers[name].mul_(DECAY).add_(value)
