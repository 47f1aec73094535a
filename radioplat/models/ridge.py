"""Ridge regression from sums over rows, with the strength of the penalty chosen on rows held out from the fit.

Hoerl and Kennard, "Ridge Regression: Biased Estimation for Nonorthogonal Problems", Technometrics 1970. All sums are
float64, and :class:`RowSums` of micro-batches are the same, bit for bit, however ranks share these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from radioplat.common.exact_sums import ExactSum

# Candidates for the penalty, relative to the mean variance of the inputs: half decades.
STRENGTHS = tuple(10.0 ** (exponent / 2) for exponent in range(-12, 9))
_BLOCK = 4096  # rows widened to float64 at a time


@dataclass
class Sums:
    """Float64 sums over rows of inputs x and targets y.

    Attributes:
        count: rows, a scalar.
        x, y: sums, ``[Dx]`` and ``[Dy]``.
        xx, xy: sums of products, ``[Dx, Dx]`` and ``[Dx, Dy]``.
        yy: sum of the squares of y, ``[Dy]``.
    """

    count: torch.Tensor
    x: torch.Tensor
    y: torch.Tensor
    xx: torch.Tensor
    xy: torch.Tensor
    yy: torch.Tensor

    @classmethod
    def empty(cls, inputs: int, targets: int, device: torch.device | str = "cpu") -> Sums:
        """Create zero sums for ``inputs`` and ``targets`` dimensions."""
        shapes = ((), (inputs,), (targets,), (inputs, inputs), (inputs, targets), (targets,))
        return cls(*(torch.zeros(shape, dtype=torch.float64, device=device) for shape in shapes))

    def parts(self) -> list[torch.Tensor]:
        """Return all sums."""
        return list(vars(self).values())

    def add(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """Add rows ``[N, Dx]`` and ``[N, Dy]``."""
        self.count += len(x)
        for inputs, targets in zip(x.split(_BLOCK), y.split(_BLOCK), strict=True):
            a, b = inputs.to(self.x.device).double(), targets.to(self.x.device).double()
            self.x += a.sum(0)
            self.y += b.sum(0)
            self.xx.addmm_(a.T, a)
            self.xy.addmm_(a.T, b)
            self.yy += b.square().sum(0)

    def minus_inputs(self) -> Sums:
        """Return the sums with y - x in the place of y; x and y have the same dimensions."""
        yy = self.yy - 2 * self.xy.diagonal() + self.xx.diagonal()
        return Sums(self.count, self.x, self.y - self.x, self.xx, self.xy - self.xx, yy)

    def __add__(self, other: Sums) -> Sums:
        return Sums(*(mine + theirs for mine, theirs in zip(self.parts(), other.parts(), strict=True)))

    def finite(self) -> bool:
        """Return True if every sum is finite."""
        return all(bool(torch.isfinite(part).all()) for part in self.parts())

    def spread(self) -> torch.Tensor:
        """Return the sum of squared differences of y from its mean, a scalar."""
        return (self.yy - self.y.square() / self.count.clamp(min=1)).clamp(min=0).sum()


class RowSums:
    """Sums over the rows of micro-batches and ranks, with the same result in any order."""

    def __init__(self, inputs: int, targets: int, device: torch.device | str = "cpu") -> None:
        """Begin with zero; see :meth:`Sums.empty`."""
        self._empty = partial(Sums.empty, inputs, targets, device)
        self._sums = [ExactSum(part) for part in self._empty().parts()]

    def add(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """Add the rows of one micro-batch, ``[N, Dx]`` and ``[N, Dy]``."""
        sums = self._empty()
        sums.add(x, y)
        for mine, part in zip(self._sums, sums.parts(), strict=True):
            mine.add(part)

    def total(self, over_ranks: Callable[[torch.Tensor], torch.Tensor]) -> Sums:
        """Return the sums over all ranks, on the CPU; ``over_ranks`` sums a tensor over ranks."""
        return Sums(*(mine.total(over_ranks).cpu() for mine in self._sums))


@dataclass(frozen=True)
class Fit:
    """A linear map y = weight x + bias.

    Attributes:
        weight, bias: float64 ``[Dy, Dx]`` and ``[Dy]``.
        strength: the chosen penalty, one of :data:`STRENGTHS`.
        r2: share of the targets' variance that the fit explains on the rows held out, before these were added to it;
            at most 1, and 0 for the mean of the targets.
    """

    weight: torch.Tensor
    bias: torch.Tensor
    strength: float
    r2: float


def fit_ridge(fitted: Sums, held_out: Sums) -> Fit | None:
    """Fit y = W x + b on ``fitted`` for each strength, choose the best on ``held_out``, and fit it on all rows.

    If x and y have the same dimensions, W is also shrunk towards the identity instead of zero, and the better of both
    is taken: a student that was cut out of its teacher computes nearly what its teacher does.

    Returns:
        None if the targets or the inputs are constant, if there are fewer than two rows in either part, or if no
        strength is better than the mean of the targets: nothing was learned.

    Raises:
        ValueError: a sum is not finite.
    """
    if not (fitted.finite() and held_out.finite()):
        raise ValueError("features that are not finite")
    if min(float(fitted.count), float(held_out.count)) < 2 or not float(held_out.spread()):
        return None
    values, vectors = torch.linalg.eigh(_covariance(fitted))
    values = values.clamp(min=0)
    if not float(values.max()):
        return None
    parts = [(fitted, held_out)]
    if len(fitted.x) == len(fitted.y):
        parts.append((fitted.minus_inputs(), held_out.minus_inputs()))
    moments = vectors.T @ held_out.xx @ vectors
    errors = torch.stack([_errors(mine, other, values, vectors, moments) for mine, other in parts])
    towards, best = divmod(int(errors.argmin()), len(STRENGTHS))
    r2 = 1 - float(errors.min() / held_out.spread())
    if not r2 > 0:
        return None
    whole = fitted + held_out
    weight, bias = _solution(whole.minus_inputs() if towards else whole, STRENGTHS[best])
    if towards:
        weight = weight + torch.eye(len(weight), dtype=weight.dtype)
    return Fit(weight, bias, STRENGTHS[best], r2)


def _covariance(sums: Sums) -> torch.Tensor:
    """Return the inputs' covariance, ``[Dx, Dx]``."""
    x = sums.x / sums.count
    covariance = sums.xx / sums.count - torch.outer(x, x)
    return (covariance + covariance.T) / 2


def _cross(sums: Sums) -> torch.Tensor:
    """Return the covariance of inputs and targets, ``[Dx, Dy]``."""
    return sums.xy / sums.count - torch.outer(sums.x, sums.y) / sums.count**2


def _solution(sums: Sums, strength: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return W and b with the penalty ``strength`` times the inputs' mean variance."""
    covariance = _covariance(sums)
    covariance.diagonal().add_(strength * covariance.diagonal().mean())
    weight = torch.cholesky_solve(_cross(sums), torch.linalg.cholesky(covariance)).T
    return weight, (sums.y - weight @ sums.x) / sums.count


def _errors(
    fitted: Sums, held_out: Sums, values: torch.Tensor, vectors: torch.Tensor, moments: torch.Tensor
) -> torch.Tensor:
    """Return the sum of squared errors over the rows held out, for each strength: ``[strengths]``.

    In the eigenvectors' basis a strength only scales rows of the solution, so products of matrices are computed once.

    Args:
        values, vectors: of the covariance of the inputs of ``fitted``.
        moments: products of the inputs held out, in that basis.
    """
    cross, own = vectors.T @ _cross(fitted), vectors.T @ held_out.xy
    linear, square = (cross * own).sum(1), moments * (cross @ cross.T)
    x_fitted, x = vectors.T @ fitted.x, vectors.T @ held_out.x
    errors = []
    for strength in STRENGTHS:
        scale = 1 / (values + strength * values.mean())
        bias = (fitted.y - (scale * x_fitted) @ cross) / fitted.count
        moved = (scale * x) @ cross
        products = scale @ linear + bias @ held_out.y
        squares = scale @ square @ scale + 2 * bias @ moved + held_out.count * bias @ bias
        errors.append(held_out.yy.sum() - 2 * products + squares)
    return torch.stack(errors)
