"""A detector as the exporter wants it: images in, ``logits`` and ``pred_boxes`` out."""

from __future__ import annotations

import builtins
import contextlib
import functools
import importlib
import os
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

from radioplat.exporting.onnx.flat_student import LOGITS, FlatStudent
from radioplat.models.detectors.base import Detector

BOXES = "pred_boxes"
_THEIRS = tuple(f"transformers.models.{name}.modeling_{name}" for name in ("rt_detr", "rt_detr_v2"))
_CANDIDATES = 4  # images drawn for each that is taken


class FlatDetector(FlatStudent):
    """A detector whose forward gives ``logits`` ``[B, Q, C]`` and ``pred_boxes`` ``[B, Q, 4]``: a private copy."""

    @property
    def comparison(self) -> dict[str, Any]:
        """See :class:`FlatStudent`: queries that are equally sure may change places."""
        return {"noise": self.noise, "as_wanted": as_wanted}

    def noise(self, count: int, height: int, width: int, generator: torch.Generator) -> Tensor:
        """``[count, 3, height, width]`` in [0, 1] of which it is clear which positions become queries.

        Queries are the surest positions. Where the last that is taken and the first that is not are nearly equal, two
        programs that add up in another order take another one, and neither is wrong.
        """
        drawn = torch.rand(_CANDIDATES * count, 3, height, width, generator=generator)
        scores: list[Tensor] = []
        head = self._first_head().register_forward_hook(lambda _module, _given, told: scores.append(told.amax(-1)))
        try:
            with torch.no_grad():
                self(drawn)
        finally:
            head.remove()
        queries = self.student.detr.config.num_queries
        if queries >= scores[0].shape[1]:
            return drawn[:count]
        best = scores[0].topk(queries + 1, 1).values
        return drawn[(best[:, -2] - best[:, -1]).topk(count).indices]

    def _first_head(self) -> nn.Module:
        detr = self.student.detr
        return getattr(detr, "model", detr).enc_score_head

    def _named(self, images: Tensor) -> Iterator[tuple[str, Tensor]]:
        with _open_batch():
            output = self.student(images)
        yield LOGITS, output.logits
        yield BOXES, output.pred_boxes


@functools.singledispatch
def flatten(model: Any, adaptors: Sequence[str] = ()) -> FlatStudent:
    """Return the module that the exporter traces; a further kind of model registers its own here."""
    return FlatStudent(model, adaptors)


@flatten.register
def _(model: Detector, adaptors: Sequence[str] = ()) -> FlatStudent:
    return FlatDetector(model)


def as_wanted(wanted: dict[str, np.ndarray], got: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """``got`` with the queries of each image in the order of ``wanted``'s: by the one to one matching in which scores
    and boxes differ least. Two that are equally sure change places for a difference in the last digit.

    Anything but the outputs of a detector, and what is not finite, is given back as it is.
    """
    from scipy.optimize import linear_sum_assignment
    from scipy.spatial.distance import cdist

    if BOXES not in wanted or any(v.shape != got[k].shape or not np.isfinite(got[k]).all() for k, v in wanted.items()):
        return got
    a, b = (
        np.concatenate([1 / (1 + np.exp(-v[LOGITS].astype(np.float64))), v[BOXES].astype(np.float64)], -1)
        for v in (wanted, got)
    )
    order = np.stack([linear_sum_assignment(cdist(x, y, "chebyshev"))[1] for x, y in zip(a, b, strict=True)])
    return {name: np.take_along_axis(value, order[..., None], 1) for name, value in got.items()}


@contextlib.contextmanager
def _open_batch() -> Iterator[None]:
    """Let transformers' code be traced for any number of images.

    Its ``len(tensor)`` must be an int and so fixes the batch (``tensor.shape[0]`` does not), and its checks of shapes
    are operators that ONNX has not; they can be turned off.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, {"TRANSFORMERS_DISABLE_TORCH_CHECK": "1"}))
        for name in _THEIRS:
            stack.enter_context(mock.patch.object(importlib.import_module(name), "len", _length, create=True))
        yield


def _length(value: Any) -> Any:
    return value.shape[0] if isinstance(value, Tensor) else builtins.len(value)
