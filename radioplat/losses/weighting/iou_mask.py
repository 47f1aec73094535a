"""Weights of positions from a teacher detector: high near objects that it detects with a high score and IoU."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torchvision.ops import box_convert, box_iou

_LEAST = 0.01  # of a position's weight, before the division


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


def tao_object_mask(
    logits: torch.Tensor,
    boxes: torch.Tensor,
    queries: torch.Tensor,
    features: torch.Tensor,
    truth: Sequence[torch.Tensor],
    size: tuple[int, int],
) -> torch.Tensor:
    """Compute the weight of each position of a map as TAO 7.0.1's RT-DETR does, fp32 ``[B, h, w]`` in (0, 1].

    The value of a proposal is its highest class logit times its largest IoU with an object; in an image without
    objects, the logit alone. The weight of a position is the sum over proposals of value times cosine between the
    features of proposal and position, at least 0.01, divided by the largest in the image.

    As in TAO's code, the IoU is that of the proposal's corners in pixels with the numbers of ``truth`` read as
    corners, though they are centre and size relative to the image. It is next to 0, so almost every weight in an image
    with objects is 1.

    Args:
        logits: ``[B, Q, C]``, of the teacher's proposals.
        boxes: ``[B, Q, 4]``, centre x, centre y, width, height relative to the image.
        queries: ``[B, Q, D]``, features of the proposals.
        features: ``[B, h, w, D]``, of the positions.
        truth: of each image ``[N, 4]``, the objects in the form of ``boxes``.
        size: height and width of the images, pixels.
    """
    height, width = size
    corners = box_convert(boxes, "cxcywh", "xyxy") * boxes.new_tensor([width, height, width, height])
    values = [
        score * _overlap(mine, objects.to(mine)).amax(1) if len(objects) else score
        for score, mine, objects in zip(logits.amax(-1), corners, truth, strict=True)
    ]
    alike = torch.einsum("bqd,bhwd->bqhw", F.normalize(queries, dim=-1), F.normalize(features, dim=-1))
    mask = torch.einsum("bqhw,bq->bhw", alike, torch.stack(values)).clamp(min=_LEAST)
    return mask / mask.amax((1, 2), keepdim=True)


def _overlap(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the IoU ``[N, M]`` of corners; also of those that are in the wrong order, whose area may be negative."""
    inner = (torch.minimum(a[:, None, 2:], b[:, 2:]) - torch.maximum(a[:, None, :2], b[:, :2])).clamp(min=0).prod(-1)
    areas = [(box[:, 2:] - box[:, :2]).prod(-1) for box in (a, b)]
    return inner / (areas[0][:, None] + areas[1] - inner).clamp(min=1e-6)


def _worth(logits: torch.Tensor, boxes: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    if not len(truth):
        return boxes.new_zeros(len(boxes))
    overlap = box_iou(box_convert(boxes, "cxcywh", "xyxy"), box_convert(truth.to(boxes), "cxcywh", "xyxy"))
    return logits.sigmoid().amax(-1) * overlap.amax(1)
