"""``quantize.backend: modelopt.onnx``: what ``export`` wrote, quantized as a file."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from radioplat.data.loading.sample_images import check_calibration_images
from radioplat.errors import EngineError
from radioplat.evaluation.models.encoder import Encoder
from radioplat.evaluation.models.onnx_file import OnnxModel
from radioplat.exporting.onnx.modelopt import quantize_onnx
from radioplat.spec.resolved.number_formats import formats_of
from radioplat.spec.schema.quantize import Calibrator
from radioplat.spec.schema.root import Spec
from radioplat.tasks.export.export import onnx_file
from radioplat.tasks.quantize.report import REPORT, LayerReport, QuantizeReport
from radioplat.tracking.results import TaskFolder, write_atomic

FILE = "student_quantized.onnx"


def quantized_file(
    spec: Spec, folder: TaskFolder, calibration_images: Callable[[Spec, int], list[torch.Tensor]]
) -> QuantizeReport:
    """Quantize ``quantize.model_path``, by default the file that ``export`` wrote, into the task's folder.

    Args:
        calibration_images: spec and size to batches, uint8 ``[B, 3, size, size]``.

    Raises:
        SpecError, DataError, EngineError: see :func:`radioplat.tasks.quantize.quantize.quantize`.
    """
    asked = spec.quantize
    source = Path(asked.model_path or asked.checkpoint or onnx_file(spec))
    if source.suffix.lower() != ".onnx" or not source.is_file():
        hint = "Run `radioplat export` first, or name an .onnx file."
        raise EngineError(f"there is no ONNX file {source}", where="quantize.model_path", hint=hint)
    before = OnnxModel(source, "quantize.model_path", torch.get_num_threads(), "cpu")
    batches = calibration_images(spec, before.interface.size_for(None, spec.dataset.img_size))
    check_calibration_images([images.numpy() for images in batches], "dataset.quant_calibration_dataset")
    weights, _ = formats_of(asked, None)
    assert weights is not None  # quantize_problems has seen to it
    path = folder.path / FILE
    images = torch.cat(batches).numpy().astype(np.float32) / 255
    method = "entropy" if asked.algorithm is Calibrator.entropy else "max"
    exclude, more = asked.skip_names, asked.backend_kwargs
    found = quantize_onnx(source, path, images, format=weights, method=method, exclude=exclude, more=more)
    after = OnnxModel(path, "quantize.model_path", torch.get_num_threads(), "cpu")
    notes = [after.reason] if after.reason else []
    cosine = {} if after.reason else _likeness(before.encode, after.encode, batches)
    layers = [LayerReport(name, kind) for name, kind in found.quantized.items()]
    report = QuantizeReport(path, source, layers, found.skipped, len(images), cosine, notes=notes)
    text = {**asdict(report), "path": str(path), "checkpoint": str(source)}
    write_atomic(folder.path / REPORT, json.dumps(text, indent=1))
    return report


def _likeness(before: Encoder, after: Encoder, batches: list[torch.Tensor]) -> dict[str, float]:
    """Mean cosine of what two files say of the same images, by kind of feature."""
    found: dict[str, list[torch.Tensor]] = {}
    for images in batches:
        ours, theirs = after(images), before(images)
        for kind in ("summary", "spatial"):
            each = torch.cosine_similarity(getattr(ours, kind), getattr(theirs, kind), dim=-1)
            found.setdefault(kind, []).append(each.reshape(len(images), -1).mean(1))
    return {kind: float(torch.cat(values).mean()) for kind, values in found.items()}
