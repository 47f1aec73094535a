"""Post-training quantization: calibrate a student or a detector by the backend that the spec names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

import torch

from radioplat.compression.quantization.quantize_model import quantize_model
from radioplat.data.loading.sample_images import sample_images
from radioplat.errors import SpecError
from radioplat.models.vision_model import VisionModel, open_model
from radioplat.spec.checks.tasks.quantize import calibration_split, replaced_backend
from radioplat.spec.loading.load import to_yaml
from radioplat.spec.schema.root import Spec
from radioplat.tasks.quantize import onnx_file
from radioplat.tasks.quantize.report import MODEL, REPORT, QuantizeReport, layer_reports
from radioplat.tasks.shared.find_checkpoint import find_checkpoint
from radioplat.tasks.shared.model_folder import write_model
from radioplat.tracking.results import TaskFolder
from radioplat.tracking.task_log import log_task
from radioplat.tracking.weights_and_biases.artifacts import Product
from radioplat.tracking.weights_and_biases.task import kind_of, tell_task


def post_train(spec: Spec, folder: TaskFolder) -> QuantizeReport:
    """Quantize by the backend that the spec names, and keep the task's diary."""
    run = BACKENDS[spec.quantize.backend]
    report = log_task(folder, "quantize", to_yaml(spec), lambda: run(spec, folder), _kpi)
    made = Product(report.path, kind_of(report.path), [report.checkpoint])
    tell_task(spec, folder.path, "quantize", figures=_kpi(report), made=made)
    return report


def calibrated(spec: Spec, folder: TaskFolder) -> QuantizeReport:
    """Post-training quantization with the project's own quantizers."""
    asked = spec.quantize
    path = find_checkpoint(spec, asked.checkpoint or asked.model_path, "quantize.checkpoint").resolve()
    model = open_model(path, "quantize.checkpoint")
    device, notes = _device(asked.device)
    batches = calibration_images(spec, model.img_size, model.whole_images)
    done = quantize_model(model, asked, batches, device)
    made: VisionModel = done.model
    notes += replaced_backend(asked)
    notes += [f"the input of {name} was zero in all images" for name in done.idle]
    notes += [
        f"BatchNorm {norm} stays a layer behind the quantized {conv}: folding it changed the outputs"
        for conv, norm in done.unfolded
    ]
    if asked.equalize and not done.equalized:
        notes.append("quantize.equalize found no two layers with nothing but a ReLU between them")
    report = QuantizeReport(
        folder.path / MODEL,
        path,
        layer_reports(made),
        skipped_layers(made),
        sum(len(images) for images in batches),
        done.cosine,
        done.folded,
        len(done.equalized),
        notes,
    )
    write_model(made, report.path, REPORT, asdict(report))
    return report


def skipped_layers(model: VisionModel) -> dict[str, str]:
    """Linear layers and convolutions of a quantized model that stay float, and why."""
    parts = model.architecture.quantizations.items()
    return {f"{prefix}{name}": why for prefix, how in parts for name, why in how.skipped.items()}


def quantized_file(spec: Spec, folder: TaskFolder) -> QuantizeReport:
    """An exported file with quantizers."""
    return onnx_file.quantized_file(spec, folder, calibration_images)


# By quantize.backend; each writes a checkpoint folder, or a file, and says what it did.
BACKENDS: dict[str, Callable[[Spec, TaskFolder], QuantizeReport]] = {
    "native": calibrated,
    "modelopt.pytorch": calibrated,
    "modelopt.onnx": quantized_file,
    "torchao": calibrated,
}


def calibration_images(spec: Spec, size: int, whole: bool = False) -> list[torch.Tensor]:
    """Batches uint8 ``[B, 3, size, size]`` without augmentation, from the calibration split, else train; ``whole`` as
    :func:`radioplat.data.loading.sample_images.sample_images` takes it.

    Raises:
        DataError: the split holds no image that can be decoded.
    """
    asked, split = spec.quantize, calibration_split(spec)
    found = sample_images(spec, {size}, asked.calibration_batches * spec.dataset.batch_size, split, whole)[size]
    return list(torch.from_numpy(found).split(spec.dataset.batch_size))


def _device(said: str | None) -> tuple[torch.device, list[str]]:
    if said is None:
        said = "cuda" if torch.cuda.is_available() else "cpu"
    if said.startswith("cuda") and not torch.cuda.is_available():
        note = f"quantize.device is {said} and there is no GPU here: ranges were measured on the CPU"
        return torch.device("cpu"), [note]
    if said.startswith("cuda:") and int(said.removeprefix("cuda:")) >= torch.cuda.device_count():
        hint = f"There are {torch.cuda.device_count()} here, counted from 0."
        raise SpecError(f"there is no GPU {said}", where="quantize.device", hint=hint)
    return torch.device(said), []


def _kpi(report: QuantizeReport) -> dict[str, float]:
    return {"layers": len(report.layers), **{f"cosine_{kind}": value for kind, value in report.cosine.items()}}
