"""A detector and its losses as one module: what DeepSpeed sees where ``model.task`` is detection."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import nn
from torchvision.ops import box_convert

from radioplat.distill.module import MicroBatch, regularized
from radioplat.models.detectors import AnyDetector


class DetectModule(nn.Module):
    """A detector taught on boxes.

    ``forward(batch)`` gives ``loss`` and each of the detector's terms as ``loss/<term>``: those of all layers and of
    denoising added up by their kind (``loss/vfl``, ``loss/bbox``, ``loss/giou``), scalars in fp32. Samples of weight 0
    are not shown to the detector; crowds are no targets.

    A term is the sum over the objects of the micro-batch, divided by its images times ``boxes_per_image``: with the
    mean of a whole step there, of all its ranks and micro-batches, a step's loss is that of all its objects together
    over their number, however it is cut (DETR divides so over its ranks).

    Attributes:
        student: the detector; it is what a checkpoint holds.
        boxes_per_image: of the step; None: of the micro-batch at hand.
        regularizer: as in :class:`radioplat.distill.module.DistillModule`.
    """

    def __init__(self, detector: AnyDetector, view: str) -> None:
        super().__init__()
        self.student, self.view = detector, view
        self.quarantined: set[str] = set()
        self.boxes_per_image: float | None = None
        self.regularizer: Callable[[], torch.Tensor] | None = None

    def forward(self, batch: MicroBatch) -> dict[str, torch.Tensor]:
        """See the class."""
        images, boxes, counted = shown(batch, self.view)
        targets = [target_of(b, images.shape[-2:]) for b in boxes]
        terms = by_kind(self.student.outputs(images, targets).losses)
        factor = self._factor(targets) if counted else 0.0
        losses = {f"loss/{name}": factor * value.float() for name, value in terms.items()}
        total = torch.stack(list(losses.values())).sum()
        return regularized({"loss": total, **losses}, self.regularizer)

    def _factor(self, targets: list[dict[str, torch.Tensor]]) -> float:
        """What makes the step's mean of a detector's losses, which are means over the objects of these images."""
        mine = max(1, sum(len(target["class_labels"]) for target in targets))
        return 1.0 if self.boxes_per_image is None else mine / (self.boxes_per_image * len(targets))


def shown(batch: MicroBatch, view: str) -> tuple[torch.Tensor, list[torch.Tensor], bool]:
    """Images that count, the boxes of each, and whether any counts.

    Where none does, one is given without boxes: all ranks meet the same parameters in backward.
    """
    images, keep = batch.views[view], batch.weight > 0
    if not bool(keep.any()):
        return images[:1], [images.new_zeros((0, 6), dtype=torch.float32)], False
    boxes = batch.boxes
    if boxes is None:
        boxes = torch.zeros(len(images), 0, 6, device=images.device)
    return images[keep], [mine[mine[:, 4] >= 0] for mine in boxes[keep]], True


def target_of(boxes: torch.Tensor, size: tuple[int, int]) -> dict[str, torch.Tensor]:
    """What a detector learns of one image: ``class_labels`` and ``boxes`` without crowds, see ``Detector.forward``.

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
    found: dict[str, torch.Tensor] = {}
    for name, value in terms.items():
        kind = name.removeprefix("loss_").split("_")[0]
        found[kind] = found[kind] + value if kind in found else value
    return found


def count_boxes(boxes: np.ndarray | None, weight: np.ndarray) -> tuple[float, float]:
    """Objects to learn from in a micro-batch, and its images that count."""
    if boxes is None:
        return 0.0, float((weight > 0).sum())
    single = (boxes[..., 4] >= 0) & (boxes[..., 5] == 0) & (weight > 0)[:, None]
    return float(single.sum()), float((weight > 0).sum())
