"""Weights of positions from a teacher detector: high near objects that it detects with a high score and IoU."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torchvision.ops import box_convert, box_iou


def object_mask(
    logits: torch.Tensor,
    boxes: torch.Tensor,
    queries: torch.Tensor,
    memory: torch.Tensor,
    truth: Sequence[torch.Tensor],
) -> torch.Tensor:
    """Compute the weight of each position of a map, fp32 ``[B, h, w]`` in [0, 1].

    The value of a query is its highest class score times the largest IoU of its box with an object of the image. The
    weight of a position is the largest product of a query's value and the cosine (at least 0) of the query's feature
    and the position's. In an image without objects all weights are 0.

    Args:
        logits: ``[B, Q, C]``, of the teacher, each class by its own sigmoid.
        boxes: ``[B, Q, 4]``, centre x, centre y, width, height relative to the image.
        queries: ``[B, Q, D]``, features of the queries.
        memory: ``[B, h, w, D]``, features of positions, in the queries' space.
        truth: of each image ``[N, 4]``, the objects in the form of ``boxes``.
    """
    worth = torch.stack([_worth(*of_image) for of_image in zip(logits, boxes, truth, strict=True)])
    alike = torch.einsum("bqd,bhwd->bqhw", F.normalize(queries, dim=-1), F.normalize(memory, dim=-1)).clamp(min=0)
    return (alike * worth[..., None, None]).amax(1)


def _worth(logits: torch.Tensor, boxes: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    if not len(truth):
        return boxes.new_zeros(len(boxes))
    overlap = box_iou(box_convert(boxes, "cxcywh", "xyxy"), box_convert(truth.to(boxes), "cxcywh", "xyxy"))
    return logits.sigmoid().amax(-1) * overlap.amax(1)
