"""Where a detecting teacher is worth listening to: near the objects that it is sure of and right about."""

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
    """How much each position of a map counts, fp32 ``[B, h, w]`` in [0, 1].

    The worth of a query is the score of its surest class times the largest IoU of its box with an object of the image.
    A position counts by the queries that look like it: the largest worth times cosine (0 where that is negative) of the
    query's feature and the position's. In an image without objects nothing counts.

    Args:
        logits: ``[B, Q, C]``, of the teacher, each class by its own sigmoid.
        boxes: ``[B, Q, 4]``, centre x, centre y, width, height as shares of the image.
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
