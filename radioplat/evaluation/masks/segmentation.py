"""Segmentation and change detection: train a decoder on frozen maps, and score its output at pixel resolution."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from radioplat.errors import DataError
from radioplat.evaluation.masks.decoders import new_decoder
from radioplat.evaluation.masks.mask_reader import IGNORE, Masked
from radioplat.spec.schema.evaluate import MaskedConfig

MapOf = Callable[[Masked], Tensor]  # returns the map [B, h, w, D] of a batch


@dataclass(frozen=True)
class SegmentationResult:
    """Scores of a decoder on held-out images.

    Attributes:
        miou: mean intersection over union of the classes that occur in the held-out masks or predictions.
        iou, f1: by class; None for a class that occurs in neither. F1 = 2 x right / (true + predicted).
        accuracy: share of held-out pixels classified right, without ignored ones.
        images: number of held-out images (pairs, for change).
        trained_on: number of training images.
        decoder: ``linear`` or ``light``.
        weight_decay: the one chosen for a linear decoder, on training images alone; None for a light one.
    """

    miou: float
    iou: tuple[float | None, ...]
    f1: tuple[float | None, ...]
    accuracy: float
    images: int
    trained_on: int
    decoder: str
    weight_decay: float | None


@dataclass(frozen=True)
class ChangeResult(SegmentationResult):
    """Scores of segmentation, and of all classes of change together against class 0, which means no change.

    Attributes:
        change_precision: share of the pixels predicted as changed that have changed; None if none is predicted so.
        change_recall: share of the changed pixels that are predicted as changed; None if none has changed.
        change_f1, change_iou: None if neither masks nor predictions contain any change.
    """

    change_precision: float | None
    change_recall: float | None
    change_f1: float | None
    change_iou: float | None


@dataclass(frozen=True)
class Answers:
    """Predictions for the first held-out images of a section, for pictures.

    Attributes:
        images: for each role, uint8 ``[N, 3, S, S]``.
        masks: uint8 ``[N, S, S]``.
        by_model: the predicted class of each pixel, uint8 ``[N, S, S]``, by model.
        classes: number of classes.
    """

    images: tuple[Tensor, ...]
    masks: Tensor
    by_model: dict[str, Tensor]
    classes: int


class Probe:
    """The decoder of one model: add training maps, fit it, then score its predictions on held-out maps.

    Args:
        maps: number of training maps that will be added.
        where: the section in the spec, for messages.
    """

    def __init__(self, config: MaskedConfig, maps: int, where: str, seed: int = 0, device: str = "cpu") -> None:
        self._config, self._where = config, where
        self._decoder = new_decoder(config, maps, seed, device)
        self._owners: set[int] = set()
        self._judged = 0
        self.confusion = torch.zeros(config.num_classes, config.num_classes, dtype=torch.int64)

    def add(self, maps: Tensor, batch: Masked) -> None:
        """Add training maps ``[B, h, w, D]``."""
        self._decoder.add(maps, batch.masks, batch.owner)
        self._owners.update(batch.owner.tolist())

    def fit(self) -> None:
        """Fit the decoder.

        Raises:
            DataError: no training pixel has a class.
        """
        self._decoder.fit(self._where)

    def answer(self, maps: Tensor, batch: Masked) -> Tensor:
        """Predict the class of each pixel of held-out maps, uint8 ``[B, H, W]``, and count it for :meth:`result`."""
        size = (batch.masks.shape[1], batch.masks.shape[2])
        logits = self._decoder.logits(maps)
        answer = F.interpolate(logits, size=size, mode="bilinear", align_corners=False).argmax(1)
        self.confusion += confusion(answer, batch.masks, self._config.num_classes)
        self._judged += len(batch.masks)
        return answer.to(torch.uint8)

    def result(self) -> SegmentationResult:
        """Return the scores on all held-out images so far.

        Raises:
            DataError: no held-out pixel has a class.
        """
        if not int(self.confusion.sum()):
            raise DataError("no pixel of the held-out masks has a class", where=self._where)
        iou, f1 = class_iou(self.confusion), class_f1(self.confusion)
        known = [value for value in iou if value is not None]
        right = int(self.confusion.diagonal().sum()) / int(self.confusion.sum())
        config, trained_on = self._config, len(self._owners)
        return SegmentationResult(
            sum(known) / len(known), tuple(iou), tuple(f1), right, self._judged, trained_on,
            config.decoder.value, self._decoder.chosen,
        )  # fmt: skip


def segment(
    models: Mapping[str, MapOf],
    training: Iterable[Masked],
    held_out: Iterable[Masked],
    maps: int,
    config: MaskedConfig,
    where: str = "evaluate.segmentation",
    seed: int = 0,
    device: str = "cpu",
    shown: int = 0,
) -> tuple[dict[str, Probe], Answers | None]:
    """Fit and score a decoder for each of several models; each image is read once, and encoded once by each model.

    Args:
        maps: maximum number of training views.
        shown: number of held-out images whose predictions are kept for pictures.

    Raises:
        DataError: no pixel of a split has a class.
    """
    probes = {name: Probe(config, maps, where, seed, device) for name in models}
    for batch in training:
        for name, map_of in models.items():
            probes[name].add(map_of(batch), batch)
    for probe in probes.values():
        probe.fit()
    kept: list[tuple[Masked, dict[str, Tensor]]] = []
    left = shown
    for batch in held_out:
        answers = {name: probes[name].answer(map_of(batch), batch) for name, map_of in models.items()}
        if left > 0:
            kept.append((batch, answers))
            left -= len(batch.masks)
    return probes, _answers(kept, shown, config.num_classes) if kept else None


def _answers(kept: list[tuple[Masked, dict[str, Tensor]]], count: int, classes: int) -> Answers:
    largest = max(kept[0][0].pixels[0])
    images = tuple(
        torch.cat([batch.pixels[role][largest] for batch, _ in kept])[:count] for role in range(len(kept[0][0].pixels))
    )
    by_model = {name: torch.cat([answer[name] for _, answer in kept])[:count] for name in kept[0][1]}
    return Answers(images, torch.cat([batch.masks for batch, _ in kept])[:count], by_model, classes)


def change_result(probe: Probe) -> ChangeResult:
    """Compute the scores of change from a fitted decoder's confusion matrix.

    Raises:
        DataError: as :meth:`Probe.result`.
    """
    plain, cells = probe.result(), probe.confusion
    both, true, answered = (int(part.sum()) for part in (cells[1:, 1:], cells[1:], cells[:, 1:]))
    return ChangeResult(
        **vars(plain),
        change_precision=both / answered if answered else None,
        change_recall=both / true if true else None,
        change_f1=2 * both / (true + answered) if true + answered else None,
        change_iou=both / (true + answered - both) if true + answered else None,
    )


def confusion(answer: Tensor, masks: Tensor, classes: int) -> Tensor:
    """Return the number of pixels by true class (rows) and predicted class, int64 ``[C, C]``, except ignored pixels."""
    known = masks != IGNORE
    cell = masks[known].long() * classes + answer[known].long()
    return torch.bincount(cell, minlength=classes * classes).reshape(classes, classes)


def class_iou(confusion: Tensor) -> list[float | None]:
    """Return the intersection over union of each class; None if the union is empty."""
    both = confusion.diagonal()
    union = confusion.sum(0) + confusion.sum(1) - both
    return [float(b / u) if u > 0 else None for b, u in zip(both.double(), union, strict=True)]


def class_f1(confusion: Tensor) -> list[float | None]:
    """Return F1 (Dice) of each class; None for a class that occurs in neither masks nor predictions."""
    total = confusion.sum(0) + confusion.sum(1)
    return [float(2 * b / t) if t > 0 else None for b, t in zip(confusion.diagonal().double(), total, strict=True)]
