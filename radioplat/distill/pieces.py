"""A micro-batch in pieces, for a model that has no memory for the whole."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from radioplat.distill.module import MicroBatch
from radioplat.losses.criterion import BatchWise
from radioplat.losses.grid import Overlap


def in_pieces(micro: MicroBatch, count: int) -> list[tuple[float, MicroBatch]]:
    """At most ``count`` pieces of consecutive samples, as equal as can be, each with its share in the whole.

    A loss that is a weighted mean over samples, of the whole, is the sum over pieces of share times the loss of the
    piece: sum_i w_i l_i / sum_i w_i = sum_p (W_p / W) (sum_{i in p} w_i l_i / W_p), W_p the weights of piece p. Shares
    are taken from ``micro.weight``. Where a term weighs samples otherwise (labels that some lack, maps of which some
    see nothing) the samples that count in a piece with few of them count a little more than they should.
    """
    if count <= 1:
        return [(1.0, micro)]
    sizes = [len(part) for part in torch.arange(len(micro.weight)).tensor_split(min(count, len(micro.weight)))]
    weights = [float(part.sum()) for part in micro.weight.split(sizes)]
    whole = sum(weights)
    found, start = [], 0
    for size, weight in zip(sizes, weights, strict=True):
        cut = slice(start, start + size)
        found.append((weight / whole if whole else 1 / len(sizes), _cut(micro, cut)))
        start += size
    return found


def _cut(micro: MicroBatch, cut: slice) -> MicroBatch:
    return replace(
        micro,
        views={name: view[cut] for name, view in micro.views.items()},
        weight=micro.weight[cut],
        label=micro.label[cut],
        boxes=None if micro.boxes is None else micro.boxes[cut],
        targets={name: features.map(lambda t: t[cut]) for name, features in micro.targets.items()},
        overlaps={name: _cut_overlap(overlap, cut) for name, overlap in micro.overlaps.items()},
    )


def _cut_overlap(overlap: Overlap, cut: slice) -> Overlap:
    return replace(overlap, **{name: value[cut] for name, value in vars(overlap).items() if value is not None})


def differs_in_pieces(module: nn.Module) -> list[str]:
    """What in this run looks at a micro-batch as a whole, and is another thing in pieces; [] where nothing does."""
    found = []
    if any(isinstance(m, _BatchNorm) and m.training for m in module.modules()):
        found.append("BatchNorm normalizes by the statistics of a piece")
    if any(isinstance(m, BatchWise) for m in module.modules()):
        found.append("relational losses compare the samples of a piece")
    return found
