"""Split a micro-batch into pieces, for a model whose memory does not suffice for all of it at once."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from radioplat.losses.base.criterion import BatchWise
from radioplat.objectives.micro_batch import MicroBatch


def in_pieces(micro: MicroBatch, count: int) -> list[tuple[float, MicroBatch]]:
    """Return at most ``count`` pieces of consecutive samples, of about equal size, each with its share of the weight.

    A loss that is a weighted mean over the samples of a micro-batch is the sum over its pieces of share times the loss
    of the piece: sum_i w_i l_i / sum_i w_i = sum_p (W_p / W) (sum_{i in p} w_i l_i / W_p), W_p the sum of weights of
    piece p. Shares are computed from ``micro.weight``. If a term weights samples differently (some have no label, some
    maps have no visible position), samples in pieces with few such samples get slightly too much weight.
    """
    if count <= 1:
        return [(1.0, micro)]
    pieces = micro.split(count)
    weights = [float(piece.weight.sum()) for piece in pieces]
    whole = sum(weights)
    return [(w / whole if whole else 1 / len(pieces), piece) for w, piece in zip(weights, pieces, strict=True)]


def differs_in_pieces(module: nn.Module) -> list[str]:
    """Return the reasons why splitting a micro-batch changes the result; empty if splitting is exact."""
    reasons = []
    if any(isinstance(m, _BatchNorm) and m.training for m in module.modules()):
        reasons.append("BatchNorm normalizes by the statistics of a piece")
    if any(isinstance(m, BatchWise) for m in module.modules()):
        reasons.append("relational losses compare the samples of a piece")
    return reasons
