"""``quantize.backend: modelopt.onnx``: quantize an exported ONNX file."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from radioplat.data.loading.sample_images import check_calibration_images
from radioplat.errors import EngineError
from radioplat.evaluation.models.evaluated_model import Encoder
from radioplat.evaluation.models.onnx_file import OnnxModel
from radioplat.exporting.onnx.modelopt import quantize_onnx
from radioplat.spec.resolved.number_formats import formats_of
from radioplat.spec.schema.quantize import Calibrator
from radioplat.spec.schema.root import Spec
from radioplat.tasks.export.export import onnx_file
from radioplat.tasks.quantize.calibration_images import calibration_images
from radioplat.tasks.quantize.report import REPORT, LayerReport, QuantizeReport
from radioplat.tracking.results import TaskFolder, write_atomic

FILE = "student_quantized.onnx"


def quantize_file(spec: Spec, folder: TaskFolder) -> QuantizeReport:
    """Quantize ``quantize.model_path``, by default the file of ``export``, and write it to the task's folder.

    Raises:
        SpecError, DataError, EngineError: see :func:`radioplat.tasks.quantize.quantize.quantize`.
    """
    config = spec.quantize
    source, before = open_source(spec)
    batches = calibration_images(spec, before.interface.size_for(None, spec.dataset.img_size))
    check_calibration_images([images.numpy() for images in batches], "dataset.quant_calibration_dataset")
    weights, _ = formats_of(config, None)
    assert weights is not None  # checked by quantize_problems
    path = folder.path / FILE
    images = torch.cat(batches).numpy().astype(np.float32) / 255
    method = "entropy" if config.algorithm is Calibrator.entropy else "max"
    exclude, options = config.skip_names, config.backend_kwargs
    result = quantize_onnx(source, path, images, format=weights, method=method, exclude=exclude, options=options)
    after = OnnxModel(path, "quantize.model_path", torch.get_num_threads(), "cpu")
    notes = [*result.notes, *([after.reason] if after.reason else [])]
    cosine = {} if after.reason else _mean_cosines(before.encode, after.encode, batches)
    layers = [LayerReport(name, kind) for name, kind in result.quantized.items()]
    report = QuantizeReport(path, source, layers, result.skipped, len(images), cosine, notes=notes)
    text = {**asdict(report), "path": str(path), "checkpoint": str(source)}
    write_atomic(folder.path / REPORT, json.dumps(text, indent=1))
    return report


def open_source(spec: Spec) -> tuple[Path, OnnxModel]:
    """Open the file to quantize; return it with its path.

    Raises:
        EngineError: there is no such file, or it is none of a student.
    """
    config = spec.quantize
    source = Path(config.model_path or config.checkpoint or onnx_file(spec))
    if source.suffix.lower() != ".onnx" or not source.is_file():
        hint = "Run `radioplat export` first, or name an .onnx file."
        raise EngineError(f"there is no ONNX file {source}", where="quantize.model_path", hint=hint)
    return source, OnnxModel(source, "quantize.model_path", torch.get_num_threads(), "cpu")


def _mean_cosines(before: Encoder, after: Encoder, batches: list[torch.Tensor]) -> dict[str, float]:
    """Return the mean cosine of two models' features of the same images, by kind."""
    cosines: dict[str, list[torch.Tensor]] = {}
    for images in batches:
        new, old = after(images), before(images)
        for kind in ("summary", "spatial"):
            each = torch.cosine_similarity(getattr(new, kind), getattr(old, kind), dim=-1)
            cosines.setdefault(kind, []).append(each.reshape(len(images), -1).mean(1))
    return {kind: float(torch.cat(values).mean()) for kind, values in cosines.items()}
