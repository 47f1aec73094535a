"""Post-training quantization of a student, a detector or an ONNX file, by the backend that the spec selects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch

from radioplat.common.imports import require_extra
from radioplat.compression.quantization.quantize_model import quantize_model
from radioplat.errors import SpecError
from radioplat.models.source import source_of
from radioplat.models.vision_model import VisionModel, open_model
from radioplat.spec.checks.tasks.quantize import ONNX_BACKEND, replaced_backend
from radioplat.spec.loading.load import to_yaml
from radioplat.spec.schema.root import Spec
from radioplat.tasks.quantize.calibration_images import calibration_images
from radioplat.tasks.quantize.report import MODEL, REPORT, QuantizeReport, layer_reports
from radioplat.tasks.shared.find_checkpoint import find_checkpoint
from radioplat.tasks.shared.model_folder import write_model
from radioplat.tracking.results import TaskFolder
from radioplat.tracking.task_log import log_task
from radioplat.tracking.weights_and_biases.artifacts import Product
from radioplat.tracking.weights_and_biases.task_record import kind_of, log_task_to_wandb


def post_train(spec: Spec, folder: TaskFolder) -> QuantizeReport:
    """Quantize by the backend that the spec selects, and log the task."""
    run = BACKENDS[spec.quantize.backend]
    report = log_task(folder, "quantize", to_yaml(spec), lambda: run(spec, folder), _kpi)
    made = Product(report.path, kind_of(report.path), [report.checkpoint])
    log_task_to_wandb(spec, folder.path, "quantize", figures=_kpi(report), made=made)
    return report


def open_checkpoint(spec: Spec) -> tuple[Path, VisionModel]:
    """Open the student or detector to quantize; return it with its path.

    Raises:
        EngineError, WeightsError: there is no checkpoint, or it cannot be read.
    """
    path = quantized_path(spec).resolve()
    return path, open_model(path, "quantize.checkpoint")


def quantized_path(spec: Spec) -> Path:
    """Return the checkpoint to quantize.

    Raises:
        EngineError: there is none.
    """
    return find_checkpoint(spec, spec.quantize.checkpoint or spec.quantize.model_path, "quantize.checkpoint")


def quantize_checkpoint(spec: Spec, folder: TaskFolder) -> QuantizeReport:
    """Quantize a checkpoint with radioplat's quantizers."""
    config = spec.quantize
    path, model = open_checkpoint(spec)
    device, notes = choose_device(config.device)
    batches = calibration_images(spec, model.architecture.img_size, model.whole_images)
    done = quantize_model(model, config, batches, device)
    made: VisionModel = done.model
    notes += [*done.notes, *replaced_backend(config)]
    notes += [f"the input of {name} was zero in all images" for name in done.idle]
    notes += [
        f"BatchNorm {norm} was not folded into the quantized {conv}: folding changed the outputs"
        for conv, norm in done.unfolded
    ]
    if config.equalize and not done.equalized:
        notes.append("quantize.equalize found no two layers with nothing but a ReLU or ReLU6 between them")
    if config.reestimate_batchnorm:
        notes.append(f"{len(done.reestimated)} convolutions have the mean and variance that they have in floats")
    parts = made.architecture.quantizations.items()
    if name := config.backend_kwargs.get("quant_cfg"):
        count = f"{len(done.smoothed)} of {sum(len(how.layers) for _, how in parts)} layers"
        notes.append(
            f"{name}: {count} have factors of channels, in the normalization before them; the others follow none"
        )
    report = QuantizeReport(
        folder.path / MODEL,
        path,
        layer_reports(made),
        {f"{prefix}{name}": why for prefix, how in parts for name, why in how.skipped.items()},
        sum(len(images) for images in batches),
        done.cosine,
        done.folded,
        len(done.equalized),
        notes,
    )
    write_model(made, report.path, REPORT, asdict(report), [source_of(path)])
    return report


def _quantize_file(spec: Spec, folder: TaskFolder) -> QuantizeReport:
    require_extra("quantize", f"backend {ONNX_BACKEND}", "quantize.backend")
    require_extra("onnx", f"backend {ONNX_BACKEND}", "quantize.backend")
    from radioplat.tasks.quantize.onnx_file import quantize_file  # imports onnx

    return quantize_file(spec, folder)


# By quantize.backend; each writes a checkpoint folder or a file, and reports it.
BACKENDS: dict[str, Callable[[Spec, TaskFolder], QuantizeReport]] = {
    "native": quantize_checkpoint,
    "modelopt.pytorch": quantize_checkpoint,
    "modelopt.onnx": _quantize_file,
    "torchao": quantize_checkpoint,
}


def choose_device(name: str | None) -> tuple[torch.device, list[str]]:
    """Return the device of ``quantize.device``, with a note if it is another; None for a GPU if there is one.

    Raises:
        SpecError: this machine has fewer GPUs.
    """
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        note = f"quantize.device is {name} and there is no GPU here: ranges were measured on the CPU"
        return torch.device("cpu"), [note]
    if name.startswith("cuda:") and int(name.removeprefix("cuda:")) >= torch.cuda.device_count():
        hint = f"There are {torch.cuda.device_count()} here, counted from 0."
        raise SpecError(f"there is no GPU {name}", where="quantize.device", hint=hint)
    return torch.device(name), []


def _kpi(report: QuantizeReport) -> dict[str, float]:
    return {"layers": len(report.layers), **{f"cosine_{kind}": value for kind, value in report.cosine.items()}}
