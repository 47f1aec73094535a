"""Does an ONNX file compute what the torch module it came from computes?"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from radioplat.errors import EngineError


@dataclass(frozen=True)
class Agreement:
    """How far an ONNX file is from torch, at worst over all outputs and batches.

    Attributes:
        max_abs_error: max |onnx - torch|.
        max_relative_error: max |onnx - torch| / max |torch| of the same output.
        output: name of the output with the largest relative error.
        min_cosine: of one image's values of one output, in the file and in torch.
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
    as_wanted: Callable[[Arrays, Arrays], Arrays] | None = None,
) -> Agreement:
    """Run a file on onnxruntime and ``module`` on torch, both in fp32 on the CPU, on the same noise images.

    Args:
        path: an ONNX file with one input ``images``, float32 ``[B, 3, H, W]`` in [0, 1].
        module: gives a tuple of float32 tensors, one for each name in ``outputs``.
        batches: the batch sizes to try; each sees other images.
        sizes: height and width in pixels, each tried with each batch size.
        noise: draws images, from their number, height and width; by default each value evenly in [0, 1].
        as_wanted: given what torch says and what the file says, puts the latter in the order of the former.

    Raises:
        EngineError: onnxruntime refuses the file, or torch or the file gives a number that is not finite.
    """
    session = _open(path)
    generator = torch.Generator().manual_seed(0)
    worst = Agreement(0.0, -1.0, "")
    for batch, (height, width) in itertools.product(batches, sizes):
        images = (noise or _noise)(batch, height, width, generator)
        with torch.no_grad():
            wanted = [tensor.numpy() for tensor in module(images)]
        try:
            got = session.run(list(outputs), {"images": images.numpy()})
        except Exception as error:  # its classes share no base but Exception
            problem = f"onnxruntime cannot run the file on {batch} images of {height} x {width}: {_line(error)}"
            raise EngineError(problem, where="export") from error
        if as_wanted is not None:
            told, said = (dict(zip(outputs, arrays, strict=True)) for arrays in (wanted, got))
            got = list(as_wanted(told, said).values())
        for name, a, b in zip(outputs, wanted, got, strict=True):
            worst = _worse(worst, _difference(name, a, b))
    return worst


def _noise(count: int, height: int, width: int, generator: torch.Generator) -> torch.Tensor:
    return torch.rand(count, 3, height, width, generator=generator)


def _difference(name: str, wanted: np.ndarray, got: np.ndarray) -> Agreement:
    if not np.isfinite(wanted).all():
        raise EngineError(f"the student's output `{name}` is not finite", where="export.checkpoint")
    if wanted.shape != got.shape:
        raise EngineError(f"output `{name}` is {list(got.shape)} in the ONNX file and {list(wanted.shape)} in torch")
    if not np.isfinite(got).all():
        return Agreement(float("inf"), float("inf"), name, -1.0)
    error = float(np.abs(got - wanted).max())
    relative = error / max(float(np.abs(wanted).max()), 1e-6)
    return Agreement(error, relative, name, min(map(_cosine, wanted, got), default=1.0))


def _cosine(wanted: np.ndarray, got: np.ndarray) -> float:
    a, b = (values.astype(np.float64).ravel() for values in (wanted, got))
    norms = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / norms if norms else float(np.array_equal(a, b))


def _worse(a: Agreement, b: Agreement) -> Agreement:
    largest = max(a, b, key=lambda x: x.max_relative_error)
    cosine = min(a.min_cosine, b.min_cosine)
    return Agreement(max(a.max_abs_error, b.max_abs_error), largest.max_relative_error, largest.output, cosine)


def _open(path: Path):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # The file is judged as written: onnxruntime's rewrites may change numbers.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    options.intra_op_num_threads = torch.get_num_threads()
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise EngineError(f"onnxruntime cannot load the file: {_line(error)}", where="export") from error


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:400]
