"""A detector for the exporter: images in, ``logits`` and ``pred_boxes`` out."""

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
from torch import Tensor

from radioplat.exporting.onnx.flat_student import LOGITS, FlatStudent
from radioplat.models.detectors.base import Detector

BOXES = "pred_boxes"
_TRANSFORMERS = tuple(f"transformers.models.{name}.modeling_{name}" for name in ("rt_detr", "rt_detr_v2"))
_CANDIDATES = 4  # images drawn for each image that is used


class FlatDetector(FlatStudent):
    """A copy of a detector whose forward returns ``logits`` ``[B, Q, C]`` and ``pred_boxes`` ``[B, Q, 4]``."""

    @property
    def comparison(self) -> dict[str, Any]:
        """See :class:`FlatStudent`: queries with equal scores may be in another order."""
        return {"noise": self.noise, "reorder": reorder}

    def noise(self, count: int, height: int, width: int, generator: torch.Generator) -> Tensor:
        """Draw ``[count, 3, height, width]`` in [0, 1] for which the choice of queries is unambiguous.

        Queries are the positions with the highest scores. If the last that is chosen and the first that is not have
        nearly equal scores, programs with another order of additions choose differently, and both are right.
        """
        drawn = torch.rand(_CANDIDATES * count, 3, height, width, generator=generator)
        scores: list[Tensor] = []
        detr = self.student.detr
        head = getattr(detr, "model", detr).enc_score_head.register_forward_hook(
            lambda _module, _args, output: scores.append(output.amax(-1))
        )
        try:
            with torch.no_grad():
                self(drawn)
        finally:
            head.remove()
        queries = detr.config.num_queries
        if queries >= scores[0].shape[1]:
            return drawn[:count]
        best = scores[0].topk(queries + 1, 1).values
        return drawn[(best[:, -2] - best[:, -1]).topk(count).indices]

    def _named(self, images: Tensor) -> Iterator[tuple[str, Tensor]]:
        with _dynamic_batch():
            output = self.student(images)
        yield LOGITS, output.logits
        yield BOXES, output.pred_boxes


@functools.singledispatch
def flatten(model: Any, adaptors: Sequence[str] = ()) -> FlatStudent:
    """Return the module that the exporter traces; other kinds of models register theirs here."""
    return FlatStudent(model, adaptors)


@flatten.register
def _(model: Detector, adaptors: Sequence[str] = ()) -> FlatStudent:
    return FlatDetector(model)


def reorder(expected: dict[str, np.ndarray], result: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return ``result`` with the queries of each image in the order of ``expected``, by the one-to-one matching
    with the least differences of scores and boxes. Queries with nearly equal scores may be in another order.

    Outputs of other models, or that are not finite, are returned unchanged.
    """
    from scipy.optimize import linear_sum_assignment
    from scipy.spatial.distance import cdist

    if BOXES not in expected or any(
        v.shape != result[k].shape or not np.isfinite(result[k]).all() for k, v in expected.items()
    ):
        return result
    a, b = (
        np.concatenate([1 / (1 + np.exp(-v[LOGITS].astype(np.float64))), v[BOXES].astype(np.float64)], -1)
        for v in (expected, result)
    )
    order = np.stack([linear_sum_assignment(cdist(x, y, "chebyshev"))[1] for x, y in zip(a, b, strict=True)])
    return {name: np.take_along_axis(value, order[..., None], 1) for name, value in result.items()}


@contextlib.contextmanager
def _dynamic_batch() -> Iterator[None]:
    """Allow tracing transformers' code for a dynamic batch size.

    Its ``len(tensor)`` must be an int and so fixes the batch size (``tensor.shape[0]`` does not), and its checks of
    shapes are operators that ONNX does not have; they are turned off.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, {"TRANSFORMERS_DISABLE_TORCH_CHECK": "1"}))
        for name in _TRANSFORMERS:
            stack.enter_context(mock.patch.object(importlib.import_module(name), "len", _length, create=True))
        yield


def _length(value: Any) -> Any:
    return value.shape[0] if isinstance(value, Tensor) else builtins.len(value)
