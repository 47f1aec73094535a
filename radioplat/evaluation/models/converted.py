"""Convert a fake-quantized student to its deployed form, so that validations do not measure the simulation alone."""

from __future__ import annotations

import contextlib
import copy
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from radioplat.common.imports import require_extra
from radioplat.errors import EngineError, SpecError
from radioplat.evaluation.models.evaluated_model import EvaluatedModel, NamedHeads, StudentHeads, student_encoder
from radioplat.models.quantized.layers import QuantizedConv2d, QuantizedLinear
from radioplat.models.student.student import Student

EXPORTED = "Q/DQ ONNX on onnxruntime"
SNAPPED = "torch with its weights snapped to the grid"


@contextlib.contextmanager
def converted(student: Student, size: int, device: torch.device | str = "cpu") -> Iterator[tuple[EvaluatedModel, str]]:
    """Yield ``student`` exported with QuantizeLinear and DequantizeLinear, heads included, and run by onnxruntime.

    If it cannot be exported, or onnxruntime cannot run the file (some builds lack FP8), yield :func:`snapped` instead.

    Args:
        student: with quantizers, in fp32 on the CPU.
        size: pixels a side.
        device: where features are returned, and where :func:`snapped` computes.

    Yields:
        The converted model, and a description of the conversion.
    """
    with tempfile.TemporaryDirectory(prefix="radioplat-") as folder:
        path, why = Path(folder) / "student.onnx", ""
        try:
            require_extra("onnx", "the converted model", "quantize.mode")
            from radioplat.evaluation.models.onnx_file import OnnxModel
            from radioplat.exporting.onnx.export import export_onnx

            export_onnx(student, path, height=size, width=size, adaptors=student.head_names)
            model = OnnxModel(path, "train.pretrained_model_path", torch.get_num_threads(), str(device))
            why = model.reason
        except (EngineError, SpecError) as error:
            why = error.problems[0].message
        if why:
            plain = snapped(student).to(device)
            yield EvaluatedModel(student_encoder(plain), size, StudentHeads(plain)), f"{SNAPPED} ({why})"
        else:
            yield EvaluatedModel(model.encode, size, NamedHeads(model.interface.head_widths)), EXPORTED


@torch.no_grad()
def snapped(student: Student) -> Student:
    """Return a copy whose weights are rounded to their number format, without weight quantizers; activations are still
    quantized.
    """
    plain = copy.deepcopy(student)
    for layer in plain.modules():
        if isinstance(layer, (QuantizedLinear, QuantizedConv2d)) and layer.weight_quantizer is not None:
            layer.weight.copy_(layer.weight_quantizer(layer.weight))
            layer.weight_quantizer = None
    return plain
