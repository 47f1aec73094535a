"""The training module of detection runs: a detector and its losses as one module, which DeepSpeed wraps."""

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
    """Train a detector on boxes, and optionally by distillation from teacher detectors.

    ``forward(batch)`` returns fp32 scalars: ``loss``, and each of the detector's terms as ``loss/<term>``. Terms of one
    kind are summed over the decoder layers and the denoising queries (``loss/vfl``, ``loss/bbox``, ``loss/giou``).
    Samples of weight 0 are not passed to the detector, and crowd annotations are not used as targets.

    A term is its sum over the objects of the micro-batch, divided by the number of its images times
    ``boxes_per_image``. If that is the mean over all ranks and micro-batches of a step, the step's mean loss is the sum
    over all its objects divided by their number, however the step is divided into micro-batches (DETR normalizes by the
    objects of all ranks in the same way).

    Losses of bindings are logged as ``loss/<teacher>/<binding>``, means over the images. ``loss`` is
    ``config.box_loss_weight`` times the sum of the detector's own terms, plus each binding's loss times its weight.

    Args:
        widths: see :func:`radioplat.objectives.detector_bindings.binding_widths`.

    Attributes:
        student: the detector; a checkpoint contains its ``state_dict``.
        boxes_per_image: mean number of objects per image of the step, set by :meth:`begin_step`; None: the mean of the
            micro-batch is used.
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
        """Set ``boxes_per_image`` from the objects and images of the step, summed over all ranks (a collective)."""
        counts = [count_boxes(batch.views[self.view].boxes, batch.weight) for batch in context.batches]
        device = next(self.parameters()).device
        mine = torch.tensor(counts, dtype=torch.float64, device=device).reshape(-1, 2).sum(0)
        boxes, images = collectives.total(mine).tolist()
        self.boxes_per_image = max(1.0, boxes) / max(1.0, images)

    def losses(self, batch: MicroBatch) -> dict[str, torch.Tensor]:
        """Return ``loss``, the detector's terms and the losses of the bindings, as fp32 scalars by name."""
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
                total = total + self._bound(teacher, outputs, batch, rows, truth, tuple(images.shape[-2:]), losses)
        return {"loss": total, **losses}

    def _bound(
        self,
        teacher: ResolvedTeacher,
        outputs: dict[str, torch.Tensor],
        batch: MicroBatch,
        rows: torch.Tensor,
        truth: list[torch.Tensor],
        size: tuple[int, int],
        losses: dict[str, torch.Tensor],
    ) -> torch.Tensor:
        """Return the weighted sum of one teacher's binding losses; add each to ``losses`` without its weight."""
        factor = batch.factors.get(teacher.name, 1.0)
        weight = batch.weight[rows] if factor else torch.zeros_like(batch.weight[rows])
        theirs = {name: value[rows] for name, value in batch.targets[teacher.name].named.items()}
        overlap = _rows_of(batch.overlaps.get(teacher.name), rows)
        values = self.peers[teacher.name](outputs, theirs, weight, truth, size, overlap)
        losses |= {f"loss/{teacher.name}/{name}": factor * value for name, value in values.items()}
        weights = {bound.name: bound.weight for bound in teacher.bindings}
        return sum(weights[name] * factor * value for name, value in values.items())

    def _factor(self, targets: list[dict[str, torch.Tensor]]) -> float:
        """Return the factor that converts a mean over the objects of these images to the normalization of the step."""
        mine = max(1, sum(len(target["class_labels"]) for target in targets))
        return 1.0 if self.boxes_per_image is None else mine / (self.boxes_per_image * len(targets))


def rows_shown(weight: torch.Tensor) -> tuple[torch.Tensor, bool]:
    """Return the indices of the samples with weight, int64, and whether there are any.

    If there are none, return the first sample, which the caller passes without boxes: every rank must run the same
    parameters in backward.
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
    """Return the training target of one image, ``class_labels`` and ``boxes`` without crowds; see ``Detector.forward``.

    Args:
        boxes: ``[N, 6]``, see :class:`radioplat.data.batch.View`.
        size: height, width in pixels.
    """
    single = boxes[boxes[:, 5] == 0]
    height, width = size
    share = single[:, :4] / single.new_tensor([width, height, width, height])
    return {"class_labels": single[:, 4].long(), "boxes": box_convert(share, "xyxy", "cxcywh")}


def by_kind(terms: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Sum the terms of each kind: ``loss_giou``, ``loss_giou_aux_0``, ``loss_giou_dn_1``, ... become ``giou``."""
    values: dict[str, torch.Tensor] = {}
    for name, value in terms.items():
        kind = name.removeprefix("loss_").split("_")[0]
        values[kind] = values[kind] + value if kind in values else value
    return values


def count_boxes(boxes: np.ndarray | None, weight: np.ndarray) -> tuple[float, float]:
    """Return the number of objects that are targets in a micro-batch, and the number of its images with weight."""
    if boxes is None:
        return 0.0, float((weight > 0).sum())
    single = (boxes[..., 4] >= 0) & (boxes[..., 5] == 0) & (weight > 0)[:, None]
    return float(single.sum()), float((weight > 0).sum())
