"""DINO's losses: transformers' Deformable DETR criterion over decoder layers, proposals and noised boxes."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers.loss.loss_deformable_detr import DeformableDetrHungarianMatcher, DeformableDetrImageLoss
from transformers.loss.loss_rt_detr import RTDetrLoss

Predictions = tuple[torch.Tensor, torch.Tensor]  # logits and boxes


class DinoLoss(nn.Module):
    """Focal loss, L1 and GIoU of matched queries (focal: of all queries), divided by the number of objects.

    The divisor is the number of objects in the batch, so the loss does not grow with their number.
    """

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        matcher = DeformableDetrHungarianMatcher(config.class_cost, config.bbox_cost, config.giou_cost)
        self.criterion = DeformableDetrImageLoss(matcher, config.num_labels, config.focal_alpha, ["labels", "boxes"])

    def forward(
        self,
        layers: Predictions,
        proposals: Predictions,
        denoised: Predictions | None,
        noised: dict[str, Any] | None,
        labels: list[dict[str, torch.Tensor]],
    ) -> dict[str, torch.Tensor]:
        """Compute weighted terms by name.

        Args:
            layers: logits ``[layers, B, Q, C]`` and boxes ``[layers, B, Q, 4]`` of the decoder layers.
            proposals: logits and boxes of the encoder's proposals, ``[B, Q, ...]``.
            denoised: of noised queries, as ``layers``.
            noised: which noised query belongs to which object, from transformers.
            labels: of each image, see :class:`radioplat.models.detectors.base.Detector`.

        Returns:
            ``loss_{ce,bbox,giou}`` of the last layer, with ``_aux_i`` of the others, with ``_enc`` of the proposals,
            with ``_dn_i`` of noised boxes.
        """
        count = max(sum(len(of_image["class_labels"]) for of_image in labels), 1)
        config = self.config
        losses: dict[str, torch.Tensor] = {}
        for i, (logits, boxes) in enumerate(zip(*layers, strict=True)):
            last = i == len(layers[0]) - 1
            losses |= self._terms(logits, boxes, labels, count, suffix="" if last else f"_aux_{i}")
        proposed = self._terms(*proposals, labels, count, suffix="_enc")
        losses |= {name: config.encoder_loss_coefficient * value for name, value in proposed.items()}
        if denoised is not None and noised is not None:
            pairs = RTDetrLoss.get_cdn_matched_indices(noised, labels)
            groups = noised["dn_num_group"]
            for i, (logits, boxes) in enumerate(zip(*denoised, strict=True)):
                losses |= self._terms(logits, boxes, labels, count * groups, pairs, f"_dn_{i}")
        return losses

    def _terms(
        self,
        logits: torch.Tensor,
        boxes: torch.Tensor,
        labels: list[dict[str, torch.Tensor]],
        count: int,
        pairs: list[tuple[torch.Tensor, torch.Tensor]] | None = None,
        suffix: str = "",
    ) -> dict[str, torch.Tensor]:
        output = {"logits": logits, "pred_boxes": boxes}
        pairs = self.criterion.matcher(output, labels) if pairs is None else pairs
        terms: dict[str, torch.Tensor] = {}
        for name in self.criterion.losses:
            terms |= self.criterion.get_loss(name, output, labels, pairs, count)
        weights = {
            "loss_ce": self.config.class_loss_coefficient,
            "loss_bbox": self.config.bbox_loss_coefficient,
            "loss_giou": self.config.giou_loss_coefficient,
        }
        return {name + suffix: weights[name] * value for name, value in terms.items()}
