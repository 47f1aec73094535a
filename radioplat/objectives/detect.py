"""A detector and its losses as one module: the module that DeepSpeed wraps where ``model.task`` is detection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import nn
from torchvision.ops import box_convert

from radioplat.common import collectives
from radioplat.losses.base.grid import Overlap
from radioplat.models.capture import captured
from radioplat.models.detectors.base import Detector
from radioplat.objectives.detector_bindings import DetectorBindings, Widths, student_modules
from radioplat.objectives.micro_batch import MicroBatch
from radioplat.objectives.objective import Objective, StepContext
from radioplat.spec.resolved.teacher import ResolvedTeacher
from radioplat.spec.schema.distill import DistillConfig


class DetectObjective(Objective):
    """A detector taught on boxes, and by other detectors.

    ``forward(batch)`` gives ``loss`` and each of the detector's terms as ``loss/<term>``: those of all layers and of
    denoising added up by their kind (``loss/vfl``, ``loss/bbox``, ``loss/giou``), scalars in fp32. Samples of weight 0
    are not shown to the detector; crowds are no targets.

    A term is the sum over the objects of the micro-batch, divided by its images times ``boxes_per_image``: with the
    mean of a whole step there, of all its ranks and micro-batches, a step's loss is that of all its objects together
    over their number, however it is cut (DETR divides so over its ranks).

    Bindings come in as ``loss/<teacher>/<binding>``, means over the images. ``loss`` is
    ``config.box_loss_weight`` times the detector's own terms, and each binding times its weight.

    Args:
        widths: see :func:`radioplat.objectives.detector_bindings.binding_widths`.

    Attributes:
        student: the detector; it is what a checkpoint holds.
        boxes_per_image: mean over the step, set by :meth:`begin_step`; None: that of the micro-batch.
    """

    needs_whole_step = True

    def __init__(
        self,
        detector: Detector,
        view: str,
        teachers: Sequence[ResolvedTeacher] = (),
        widths: Widths | None = None,
        config: DistillConfig | None = None,
    ) -> None:
        config = DistillConfig() if config is None else config
        peers = nn.ModuleDict({t.name: DetectorBindings(t, widths or {}, config) for t in teachers})
        super().__init__(detector, view, teachers, peers)
        self.box_loss_weight = config.box_loss_weight
        self._captures = student_modules(teachers)
        self.boxes_per_image: float | None = None

    def begin_step(self, context: StepContext) -> None:
        """Count the objects and images of the step over all ranks, by which its losses are divided."""
        counts = [count_boxes(batch.views[self.view].boxes, batch.weight) for batch in context.batches]
        device = next(self.parameters()).device
        mine = torch.tensor(counts, dtype=torch.float64, device=device).reshape(-1, 2).sum(0)
        boxes, images = collectives.total(mine).tolist()
        self.boxes_per_image = max(1.0, boxes) / max(1.0, images)

    def losses(self, batch: MicroBatch) -> dict[str, torch.Tensor]:
        """See the class."""
        rows, counted = rows_shown(batch.weight)
        images = batch.views[self.view][rows]
        targets = [target_of(b, images.shape[-2:]) for b in _boxes(batch, rows, counted)]
        with captured(self.student, self._captures) as outputs:
            terms = by_kind(self.student.outputs(images, targets).losses)
        factor = self._factor(targets) if counted else 0.0
        losses = {f"loss/{name}": factor * value.float() for name, value in terms.items()}
        total = self.box_loss_weight * torch.stack(list(losses.values())).sum()
        truth = [target["boxes"] for target in targets]
        for teacher in self.teachers:
            if teacher.name not in self.quarantined:
                total = total + self._bound(teacher, outputs, batch, rows, truth, losses)
        return {"loss": total, **losses}

    def _bound(
        self,
        teacher: ResolvedTeacher,
        outputs: dict[str, torch.Tensor],
        batch: MicroBatch,
        rows: torch.Tensor,
        truth: list[torch.Tensor],
        losses: dict[str, torch.Tensor],
    ) -> torch.Tensor:
        """The bindings of one teacher, each times its weight; puts each into ``losses`` as it is logged."""
        factor = batch.factors.get(teacher.name, 1.0)
        weight = batch.weight[rows] if factor else torch.zeros_like(batch.weight[rows])
        theirs = {name: value[rows] for name, value in batch.targets[teacher.name].named.items()}
        overlap = _rows_of(batch.overlaps.get(teacher.name), rows)
        values = self.peers[teacher.name](outputs, theirs, weight, truth, overlap)
        losses |= {f"loss/{teacher.name}/{name}": factor * value for name, value in values.items()}
        weights = {bound.name: bound.weight for bound in teacher.bindings}
        return sum(weights[name] * factor * value for name, value in values.items())

    def _factor(self, targets: list[dict[str, torch.Tensor]]) -> float:
        """The factor from a mean over the objects of these images to the step's mean."""
        mine = max(1, sum(len(target["class_labels"]) for target in targets))
        return 1.0 if self.boxes_per_image is None else mine / (self.boxes_per_image * len(targets))


def rows_shown(weight: torch.Tensor) -> tuple[torch.Tensor, bool]:
    """Places of the samples that count, int64, and whether any does.

    Where none does, the first is shown, without boxes: all ranks meet the same parameters in backward.
    """
    rows = (weight > 0).nonzero()[:, 0]
    return (rows, True) if len(rows) else (torch.zeros(1, dtype=torch.int64, device=weight.device), False)


def _boxes(batch: MicroBatch, rows: torch.Tensor, counted: bool) -> list[torch.Tensor]:
    if batch.boxes is None or not counted:
        return [torch.zeros(0, 6, device=batch.weight.device) for _ in rows]
    return [mine[mine[:, 4] >= 0] for mine in batch.boxes[rows]]


def _rows_of(overlap: Overlap | None, rows: torch.Tensor) -> Overlap | None:
    if overlap is None:
        return None
    return replace(overlap, **{name: value[rows] for name, value in vars(overlap).items() if value is not None})


def target_of(boxes: torch.Tensor, size: tuple[int, int]) -> dict[str, torch.Tensor]:
    """Training target of one image: ``class_labels`` and ``boxes`` without crowds, see ``Detector.forward``.

    Args:
        boxes: ``[N, 6]``, see :class:`radioplat.data.batch.View`.
        size: height, width in pixels.
    """
    single = boxes[boxes[:, 5] == 0]
    height, width = size
    share = single[:, :4] / single.new_tensor([width, height, width, height])
    return {"class_labels": single[:, 4].long(), "boxes": box_convert(share, "xyxy", "cxcywh")}


def by_kind(terms: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """``loss_giou``, ``loss_giou_aux_0``, ``loss_giou_dn_1``, ... added up as ``giou``."""
    values: dict[str, torch.Tensor] = {}
    for name, value in terms.items():
        kind = name.removeprefix("loss_").split("_")[0]
        values[kind] = values[kind] + value if kind in values else value
    return values


def count_boxes(boxes: np.ndarray | None, weight: np.ndarray) -> tuple[float, float]:
    """Objects to learn from in a micro-batch, and its images that count."""
    if boxes is None:
        return 0.0, float((weight > 0).sum())
    single = (boxes[..., 4] >= 0) & (boxes[..., 5] == 0) & (weight > 0)[:, None]
    return float(single.sum()), float((weight > 0).sum())
