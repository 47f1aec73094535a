"""Fit heads to the teachers' features by ridge regression, before they teach.

A random head sends its first, meaningless gradients into a backbone that may be right. A fitted one begins as the best
linear map of what the student already computes: all of a linear head, of other heads the last layer behind the others.
Class scores and bindings are not fitted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import nn

from radioplat.common import collectives
from radioplat.data.batch import Batch
from radioplat.design.head_fit import POSITIONS, ROWS_PER_WIDTH, Key
from radioplat.losses.base.grid import Overlap, on_common_grid, visible_positions
from radioplat.losses.base.reduce import to_grid
from radioplat.models.features import Features
from radioplat.models.heads import TeacherHead
from radioplat.models.ridge import Fit, RowSums, Sums, fit_ridge
from radioplat.models.student.fold_target_norm import last_linear
from radioplat.models.student.student import Student
from radioplat.objectives.overlap import overlap_of

_HELD_OUT = 5  # every fifth image chooses the strength of the penalty


@dataclass(frozen=True)
class HeadFitted:
    """The outcome for one head: the share ``r2`` of the targets' variance on held-out images; None: it stays random.

    Attributes:
        rows: images, or positions of images, that it was fitted to.
        reason: why it was not fitted.
    """

    teacher: str
    kind: str
    rows: int
    width: int
    r2: float | None = None
    reason: str = ""

    @property
    def message(self) -> str:
        """One sentence for the user."""
        head = f"the {self.kind} head of {self.teacher}"
        if self.r2 is None:
            return f"{head} starts with random weights: {self.reason}"
        few = f"; {ROWS_PER_WIDTH * self.width} would be better" if self.rows < ROWS_PER_WIDTH * self.width else ""
        things = "images" if self.kind == "summary" else "positions of images"
        return f"{head} was fitted to {self.rows} {things}{few}: it explains {self.r2:.0%} of the targets' variance"


class HeadFit:
    """Sum up what the regressions need over micro-batches, then solve them and set the heads' last layers.

    Args:
        heads: teacher's name and kind of the heads to fit.
        view: name of the student's view.
        views: names of the teachers' views, by teacher.
        device: of the student and the sums.
    """

    def __init__(
        self, student: Student, heads: Iterable[Key], view: str, views: Mapping[str, str], device: torch.device
    ) -> None:
        self._student, self._view, self._views, self._device = student, view, views, device
        self._sums: dict[Key, tuple[RowSums, RowSums]] = {}  # fitted, held out
        for name, kind in heads:
            linear = last_linear(getattr(student.heads[name], kind))
            parts = [RowSums(linear.in_features, linear.out_features, device) for _ in range(2)]
            self._sums[name, kind] = parts[0], parts[1]

    def add(self, batch: Batch, answers: Mapping[str, Features]) -> None:
        """Add a micro-batch: the student's features of its view, in evaluation mode and fp32, and teachers' answers."""
        names = {name for name, _ in self._sums if name in answers}
        if not names:
            return
        view = batch.views[self._view]
        images, kept = torch.tensor(view.shown), torch.tensor(batch.weight) > 0
        held_out = torch.tensor(batch.position) % _HELD_OUT == 0
        with _evaluating(self._student), torch.no_grad():
            features = self._student(images.to(self._device), frozenset({"summary", "spatial"}))
            for name in sorted(names):
                inputs = _last_inputs(self._student.heads[name], features)
                for kind in ("summary", "spatial"):
                    if (name, kind) not in self._sums:
                        continue
                    x, y = inputs[kind].float(), getattr(answers[name], kind).to(self._device).float()
                    shown = kept.view(-1, *[1] * (x.ndim - 2)).expand(x.shape[:-1])
                    if kind == "spatial":
                        factor = self._student.heads[name].architecture.upsample
                        overlap = overlap_of(view, batch.views[self._views[name]])
                        x, y, visible = _on_one_grid(x, y, factor, overlap)
                        shown = kept.view(-1, 1, 1) & (visible.cpu() > 1 - 1e-6)
                        x, y, shown = _some_positions(x, y, shown, batch.position)
                    for part, rows in zip(self._sums[name, kind], (~held_out, held_out), strict=True):
                        taken = (shown & rows.view(-1, *[1] * (shown.ndim - 1))).to(self._device)
                        part.add(x[taken], y[taken])

    def finish(self) -> list[HeadFitted]:
        """Solve the regressions on rank 0, and set the layers so that they return raw features.

        Every rank must call it. The caller applies the target transforms to the heads in ``student.raw_heads``.
        """
        results = []
        for (name, kind), sums in self._sums.items():
            fitted, held_out = (part.total(collectives.total) for part in sums)
            width, rows = len(fitted.x), int(fitted.count + held_out.count)
            solution = collectives.from_first(partial(_solved, fitted, held_out))
            if isinstance(solution, str):
                results.append(HeadFitted(name, kind, rows, width, reason=solution))
                continue
            linear = last_linear(getattr(self._student.heads[name], kind))
            with torch.no_grad():
                linear.weight.copy_(solution.weight)
                linear.bias.copy_(solution.bias)
            self._student.raw_heads.add((name, kind))
            results.append(HeadFitted(name, kind, rows, width, solution.r2))
        return results


def _solved(fitted: Sums, held_out: Sums) -> Fit | str:
    """Return the fit, or why there is none."""
    if min(float(fitted.count), float(held_out.count)) < 2:
        return "too few images were seen to fit it"
    if not (fitted.finite() and held_out.finite()):
        return "features of the student or the teacher are not finite"
    if not float((fitted + held_out).spread()):
        return "the teacher's features are the same for all images"
    return fit_ridge(fitted, held_out) or "the student's features do not predict the teacher's better than their mean"


@contextlib.contextmanager
def _evaluating(student: nn.Module) -> Iterator[None]:
    training = student.training
    student.eval()
    try:
        yield
    finally:
        student.train(training)


def _last_inputs(head: TeacherHead, features: Features) -> dict[str, torch.Tensor]:
    """Return the input of the last linear layer by kind: ``[B, C]`` and ``[B, h, w, C]``."""
    inputs: dict[str, torch.Tensor] = {}
    with contextlib.ExitStack() as stack:
        for kind in ("summary", "spatial"):
            if (layers := getattr(head, kind)) is not None:

                def keep(module: nn.Module, arguments: tuple[torch.Tensor, ...], kind: str = kind) -> None:
                    """Remember what the layer reads."""
                    inputs[kind] = arguments[0]

                stack.callback(last_linear(layers).register_forward_pre_hook(keep).remove)
        head(features, raw=False)
    return inputs


def _on_one_grid(
    x: torch.Tensor, y: torch.Tensor, factor: int, overlap: Overlap | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return inputs and targets on the grid of the losses, and the share of each position that both models see.

    Means over positions and linear layers commute, so a layer that fits means of its inputs fits means of its outputs.

    Args:
        factor: how many times finer than ``x`` the head's map is, by pixel shuffle; the layer then computes all
            ``factor**2`` positions of one input, and so the targets of an input are put together.
    """
    if factor == 1:
        x, y, visible = on_common_grid(x, y, overlap)
        return x, y, torch.ones(x.shape[:3]) if visible is None else visible
    b, h, w, _ = x.shape
    shape = (b, h * factor, w * factor)
    if y.shape[1] < shape[1] or y.shape[2] < shape[2] or (overlap is not None and overlap.warp is not None):
        return x, y.new_zeros(b, h, w, y.shape[-1] * factor**2), torch.zeros(b, h, w)
    fine = to_grid(y, shape[1:]).reshape(b, h, factor, w, factor, -1).permute(0, 1, 3, 2, 4, 5)
    visible = torch.ones(b, h, w)
    for valid in () if overlap is None else (overlap.student, overlap.teacher):
        visible = visible * visible_positions(valid, x).cpu()
    return x, fine.reshape(b, h, w, -1), visible


def _some_positions(
    x: torch.Tensor, y: torch.Tensor, shown: torch.Tensor, place: np.ndarray
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return at most :data:`POSITIONS` positions of each image, ``[B, n, C]``, and whether they count, ``[B, n]``.

    Args:
        place: int64 ``[B]``, the images' places in the sample order, which choose their positions.
    """
    count = x.shape[1] * x.shape[2]
    taken = min(count, POSITIONS)
    chosen = (torch.arange(taken) * count // taken + torch.tensor(place).view(-1, 1)) % count
    rows = torch.arange(len(x)).view(-1, 1)
    x, y, shown = (t.flatten(1, 2)[rows.to(t.device), chosen.to(t.device)] for t in (x, y, shown))
    return x, y, shown
