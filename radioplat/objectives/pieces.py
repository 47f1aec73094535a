"""A micro-batch in pieces, for a model that has no memory for the whole."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from radioplat.losses.base.criterion import BatchWise
from radioplat.objectives.micro_batch import MicroBatch


def in_pieces(micro: MicroBatch, count: int) -> list[tuple[float, MicroBatch]]:
    """At most ``count`` pieces of consecutive samples, as equal as can be, each with its share in the whole.

    A loss that is a weighted mean over samples, of the whole, is the sum over pieces of share times the loss of the
    piece: sum_i w_i l_i / sum_i w_i = sum_p (W_p / W) (sum_{i in p} w_i l_i / W_p), W_p the weights of piece p. Shares
    are taken from ``micro.weight``. Where a term weighs samples otherwise (labels that some lack, maps of which some
    see nothing) the samples that count in a piece with few of them count a little more than they should.
    """
    if count <= 1:
        return [(1.0, micro)]
    pieces = micro.split(count)
    weights = [float(piece.weight.sum()) for piece in pieces]
    whole = sum(weights)
    return [(w / whole if whole else 1 / len(pieces), piece) for w, piece in zip(weights, pieces, strict=True)]


def differs_in_pieces(module: nn.Module) -> list[str]:
    """Reasons why splitting a micro-batch changes the result; empty if splitting is exact."""
    reasons = []
    if any(isinstance(m, _BatchNorm) and m.training for m in module.modules()):
        reasons.append("BatchNorm normalizes by the statistics of a piece")
    if any(isinstance(m, BatchWise) for m in module.modules()):
        reasons.append("relational losses compare the samples of a piece")
    return reasons
