"""A linear probe for semantic segmentation: one linear layer on the frozen map, its logits enlarged to the pixels.

The layer is fitted at the map's grid, where each cell's target is the share of each class among its pixels: the problem
is then the convex one of ``linear``, and needs no schedule. It is judged on pixels, by mean intersection over union.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from radioplat.errors import DataError
from radioplat.evaluate.linear import LinearClassifier, choose, held_out_rows
from radioplat.evaluate.masks import IGNORE, Masked
from radioplat.spec.evaluation import SegmentationConfig

_MOST_ROWS = 2**17  # cells that a layer is fitted on at most; of 768 features these are 400 MiB

MapOf = Callable[[Masked], Tensor]  # a batch to its map [B, h, w, D]


@dataclass(frozen=True)
class SegmentationResult:
    """Outcome of a segmentation probe.

    Attributes:
        miou: mean over classes of intersection over union, of those classes that the held-out masks or answers hold.
        iou: by class; None for one that neither holds.
        accuracy: share of held-out pixels classified right, ignored ones aside.
        images: held-out images.
        weight_decay: the one that was chosen, on training images alone.
    """

    miou: float
    iou: tuple[float | None, ...]
    accuracy: float
    images: int
    weight_decay: float


class Probe:
    """The probe of one model: cells of training images are added, a layer is fitted, held-out images are judged.

    Args:
        images: training images that will be added; of each an equal number of cells is kept.
    """

    def __init__(self, config: SegmentationConfig, images: int, seed: int = 0) -> None:
        self._config, self._seed = config, seed
        self._each = max(1, _MOST_ROWS // max(1, images))
        self._features: list[Tensor] = []
        self._targets: list[Tensor] = []
        self._owner: list[Tensor] = []
        self._added = self._judged = 0
        self._layer: LinearClassifier | None = None
        self._weight_decay = 0.0
        self._confusion = torch.zeros(config.num_classes, config.num_classes, dtype=torch.int64)

    def add(self, maps: Tensor, masks: Tensor) -> None:
        """Add training images: maps ``[B, h, w, D]``, masks uint8 ``[B, H, W]``."""
        shares = cell_shares(masks, self._config.num_classes, (maps.shape[1], maps.shape[2]))
        for features, targets in zip(maps.detach().flatten(1, 2).float().cpu(), shares.flatten(1, 2), strict=True):
            rows = torch.nonzero(targets.sum(1) > 0).flatten()
            if len(rows) > self._each:
                generator = torch.Generator().manual_seed(self._seed * 1_000_003 + self._added)
                rows = rows[torch.randperm(len(rows), generator=generator)[: self._each]]
            self._features.append(features[rows])
            self._targets.append(targets[rows])
            self._owner.append(torch.full((len(rows),), self._added))
            self._added += 1

    def fit(self) -> None:
        """Fit the layer; whole images are held out to choose the weight decay.

        Raises:
            DataError: no training pixel has a class.
        """
        features, targets, owner = (torch.cat(parts) for parts in (self._features, self._targets, self._owner))
        if not len(features):
            raise DataError("no pixel of the training masks has a class", where="evaluate.segmentation.masks_dir")
        owners = owner.unique()
        judges = owners[held_out_rows(torch.zeros_like(owners), self._config.held_out, self._seed)]
        held = torch.isin(owner, judges if len(judges) else owners[:1])
        if held.all():  # a single image: its cells judge each other
            held = torch.arange(len(held)) % 5 == 0
        chosen = choose(features, targets, held, self._config.weight_decays, self._config.max_iter)
        self._layer, self._weight_decay = chosen.classifier, chosen.weight_decay
        self._features, self._targets, self._owner = [], [], []

    def judge(self, maps: Tensor, masks: Tensor) -> None:
        """Add held-out images, shapes as for :meth:`add`; after :meth:`fit`."""
        assert self._layer is not None
        logits = self._layer.logits(maps.detach().float().cpu()).permute(0, 3, 1, 2)
        size = (masks.shape[1], masks.shape[2])
        answer = F.interpolate(logits, size=size, mode="bilinear", align_corners=False).argmax(1)
        self._confusion += confusion(answer, masks, self._config.num_classes)
        self._judged += len(masks)

    def result(self) -> SegmentationResult:
        """Of all held-out images so far.

        Raises:
            DataError: no held-out pixel has a class.
        """
        if not int(self._confusion.sum()):
            raise DataError("no pixel of the held-out masks has a class", where="evaluate.segmentation")
        iou = class_iou(self._confusion)
        known = [value for value in iou if value is not None]
        right = int(self._confusion.diagonal().sum()) / int(self._confusion.sum())
        return SegmentationResult(sum(known) / len(known), tuple(iou), right, self._judged, self._weight_decay)


def segment(
    models: dict[str, MapOf],
    training: Iterable[Masked],
    held_out: Iterable[Masked],
    images: int,
    config: SegmentationConfig,
    seed: int = 0,
) -> dict[str, SegmentationResult]:
    """Probe several models on the same images; each image is read once, and encoded once by each.

    Args:
        images: how many training images there are.
    """
    probes = {name: Probe(config, images, seed) for name in models}
    for batch in training:
        for name, map_of in models.items():
            probes[name].add(map_of(batch), batch.masks)
    for probe in probes.values():
        probe.fit()
    for batch in held_out:
        for name, map_of in models.items():
            probes[name].judge(map_of(batch), batch.masks)
    return {name: probe.result() for name, probe in probes.items()}


def cell_shares(masks: Tensor, classes: int, grid: tuple[int, int]) -> Tensor:
    """fp32 ``[B, h, w, C]``: the share of each class among a cell's pixels; ignored pixels belong to none."""
    known = masks != IGNORE
    one_hot = F.one_hot(torch.where(known, masks, 0).long(), classes).float() * known[..., None]
    return F.adaptive_avg_pool2d(one_hot.permute(0, 3, 1, 2), grid).permute(0, 2, 3, 1)


def confusion(answer: Tensor, masks: Tensor, classes: int) -> Tensor:
    """int64 ``[C, C]``: pixels by true class (rows) and answer; ignored pixels aside."""
    known = masks != IGNORE
    cell = masks[known].long() * classes + answer[known].long()
    return torch.bincount(cell, minlength=classes * classes).reshape(classes, classes)


def class_iou(confusion: Tensor) -> list[float | None]:
    """Intersection over union of each class; None where there is no union."""
    both = confusion.diagonal()
    union = confusion.sum(0) + confusion.sum(1) - both
    return [float(b / u) if u > 0 else None for b, u in zip(both.double(), union, strict=True)]
