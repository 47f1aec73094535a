"""Compare the outputs of an ONNX file with those of its torch module."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from radioplat.errors import EngineError
from radioplat.exporting.reference_session import open_reference


@dataclass(frozen=True)
class Agreement:
    """Largest differences of an ONNX file from torch, over all outputs and batches.

    Attributes:
        max_abs_error: max |onnx - torch|.
        max_relative_error: max |onnx - torch| / max |torch| of the same output.
        output: name of the output with the largest relative error.
        min_cosine: smallest cosine between the file's and torch's values of one output for one image.
    """

    max_abs_error: float
    max_relative_error: float
    output: str
    min_cosine: float = 1.0


Noise = Callable[[int, int, int, torch.Generator], torch.Tensor]
Arrays = dict[str, np.ndarray]


def compare_with_torch(
    path: Path,
    module: nn.Module,
    outputs: Sequence[str],
    *,
    batches: Sequence[int],
    sizes: Sequence[tuple[int, int]],
    noise: Noise | None = None,
    reorder: Callable[[Arrays, Arrays], Arrays] | None = None,
) -> Agreement:
    """Run a file on onnxruntime and ``module`` on torch, both in fp32 on the CPU, on the same noise images.

    Args:
        path: an ONNX file with one input ``images``, float32 ``[B, 3, H, W]`` in [0, 1].
        module: returns a tuple of float32 tensors, one for each name in ``outputs``.
        batches: batch sizes to compare, each with other images.
        sizes: height and width in pixels, each compared with each batch size.
        noise: draws images, from their number, height and width; by default uniformly in [0, 1].
        reorder: from outputs of torch and of the file, returns the latter in the order of the former.

    Raises:
        EngineError: onnxruntime refuses the file, or an output of torch or the file is not finite.
    """
    session = open_reference(path, "export")
    worst = Agreement(0.0, -1.0, "")
    for images in drawn_images(batches, sizes, noise):
        batch, _, height, width = images.shape
        with torch.no_grad():
            expected = [tensor.numpy() for tensor in module(images)]
        try:
            results = session.run(list(outputs), {"images": images.numpy()})
        except Exception as error:  # its errors have no common base class
            problem = f"onnxruntime cannot run the file on {batch} images of {height} x {width}: {_line(error)}"
            raise EngineError(problem, where="export") from error
        if reorder is not None:
            by_name = [dict(zip(outputs, arrays, strict=True)) for arrays in (expected, results)]
            results = list(reorder(*by_name).values())
        for name, a, b in zip(outputs, expected, results, strict=True):
            worst = _worse(worst, _difference(name, a, b))
    return worst


def drawn_images(
    batches: Sequence[int], sizes: Sequence[tuple[int, int]], noise: Noise | None = None
) -> Iterator[torch.Tensor]:
    """Yield the images of :func:`compare_with_torch`, the same at each call: float32 ``[B, 3, H, W]`` in [0, 1]."""
    generator = torch.Generator().manual_seed(0)
    for batch, (height, width) in itertools.product(batches, sizes):
        if noise is None:
            yield torch.rand(batch, 3, height, width, generator=generator)
        else:
            yield noise(batch, height, width, generator)


def _difference(name: str, expected: np.ndarray, result: np.ndarray) -> Agreement:
    if not np.isfinite(expected).all():
        raise EngineError(f"the student's output `{name}` is not finite", where="export.checkpoint")
    if expected.shape != result.shape:
        raise EngineError(
            f"output `{name}` is {list(result.shape)} in the ONNX file and {list(expected.shape)} in torch"
        )
    if not np.isfinite(result).all():
        return Agreement(float("inf"), float("inf"), name, -1.0)
    error = float(np.abs(result - expected).max())
    relative = error / max(float(np.abs(expected).max()), 1e-6)
    return Agreement(error, relative, name, min(map(_cosine, expected, result), default=1.0))


def _cosine(expected: np.ndarray, result: np.ndarray) -> float:
    a, b = (values.astype(np.float64).ravel() for values in (expected, result))
    norms = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / norms if norms else float(np.array_equal(a, b))


def _worse(a: Agreement, b: Agreement) -> Agreement:
    largest = max(a, b, key=lambda x: x.max_relative_error)
    cosine = min(a.min_cosine, b.min_cosine)
    return Agreement(max(a.max_abs_error, b.max_abs_error), largest.max_relative_error, largest.output, cosine)


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:400]
