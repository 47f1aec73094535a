"""Match the queries of a student's detector with its teacher's, so that their outputs can be compared.

The queries of a detector are an unordered set: two detectors may have different numbers of queries, and their i-th
queries are unrelated. So queries are matched one to one, as DETR matches queries and objects (Carion et al. 2020,
section 3.1).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torchvision.ops import box_convert, generalized_box_iou

TAPS = ("pred_logits", "pred_boxes")  # outputs of a detector's queries, in the order of the fields of Answers
# DETR's cost coefficients of classes, of the boxes' L1 distance and of their GIoU.
_CLASS, _L1, _GIOU = 2.0, 5.0, 2.0
_WORST = 1e4  # cost of a pair with a NaN: above that of any other


class Answers(NamedTuple):
    """Output of a detector's queries.

    Attributes:
        logits: ``[B, Q, C]``, each class by its own sigmoid.
        boxes: ``[B, Q, 4]``, centre x, centre y, width, height relative to the image.
    """

    logits: torch.Tensor
    boxes: torch.Tensor


class Pairs(NamedTuple):
    """Matched queries.

    Attributes:
        mine, theirs: int64 ``[B, K]``, indices of the student's and the teacher's queries; K is the smaller number of
            queries.
    """

    mine: torch.Tensor
    theirs: torch.Tensor


@torch.no_grad()
def match_queries(mine: Answers, theirs: Answers) -> Pairs:
    """Find the matching of least cost.

    The cost is 2 times the distance of class scores (summed over classes), 5 times the L1 distance of boxes, and -2
    times their GIoU.

    Raises:
        ValueError: the two have different classes.
    """
    from scipy.optimize import linear_sum_assignment  # here: importing it takes 0.25 s in each process

    if mine.logits.shape[-1] != theirs.logits.shape[-1]:
        raise ValueError(f"{mine.logits.shape[-1]} classes cannot be matched with {theirs.logits.shape[-1]}")
    at: tuple[list[torch.Tensor], list[torch.Tensor]] = [], []
    for logits, boxes, their_logits, their_boxes in zip(*(t.float() for t in (*mine, *theirs)), strict=True):
        scores = torch.cdist(logits.sigmoid(), their_logits.sigmoid(), p=1)
        corners = [box_convert(b, "cxcywh", "xyxy") for b in (boxes, their_boxes)]
        cost = _CLASS * scores + _L1 * torch.cdist(boxes, their_boxes, p=1) - _GIOU * generalized_box_iou(*corners)
        matching = linear_sum_assignment(cost.nan_to_num(_WORST, _WORST, -_WORST).cpu().numpy())
        for to, places in zip(at, matching, strict=True):
            to.append(torch.as_tensor(places, device=logits.device))
    return Pairs(*map(torch.stack, at))


def criterion_inputs(
    tap: str, mine: Answers, theirs: Answers, pairs: Pairs
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the features that a criterion compares for ``pred_logits`` or ``pred_boxes``, and their weights.

    All pairs of logits have the same weight. A box is weighted by its teacher's score, because boxes of low score are
    arbitrary.

    Returns:
        Student's and teacher's ``[B, K, 1, D]``, and ``[B, K, 1]`` in [0, 1].
    """
    which = TAPS.index(tap)
    target = select_queries(theirs[which], pairs.theirs)
    sure = best_class_score(select_queries(theirs.logits, pairs.theirs))
    return select_queries(mine[which], pairs.mine), target, sure if tap == "pred_boxes" else torch.ones_like(sure)


def select_queries(values: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Select ``places`` ``[B, K]`` of ``values`` ``[B, Q, D]``, as a map ``[B, K, 1, D]`` of K positions."""
    return values.gather(1, places[..., None].expand(-1, -1, values.shape[-1]))[:, :, None]


def best_class_score(logits: torch.Tensor) -> torch.Tensor:
    """Return the score of a query's best class, in (0, 1).

    Args:
        logits: ``[..., C]``; the result is ``[...]``.
    """
    return logits.detach().float().sigmoid().amax(-1)
