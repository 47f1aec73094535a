"""The task ``quantize``: a trained student in INT8 or FP8, a checkpoint that trains on, is evaluated and exported."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch

from radioplat.common import terminal
from radioplat.compression.quantization.detector import BACKBONE, quantize_detector
from radioplat.compression.quantization.student import Quantized, quantize_student
from radioplat.data.loading.sample_images import sample_images
from radioplat.errors import SpecError
from radioplat.launch.driver import RunResult
from radioplat.models.detectors.base import Detector
from radioplat.models.detectors.checkpoint import is_detector, load_detector, save_detector
from radioplat.models.quantized.quantizer import quantizers
from radioplat.models.student.checkpoint import load_student, save_student
from radioplat.models.student.student import Student
from radioplat.spec.checks.tasks.quantize import calibration_split, quantize_problems
from radioplat.spec.loading.load import load_spec, to_yaml
from radioplat.spec.schema.quantize import QuantizeMode
from radioplat.spec.schema.root import Spec
from radioplat.tasks.export.export import find_checkpoint
from radioplat.tracking.follow import Callback
from radioplat.tracking.results import TaskFolder
from radioplat.tracking.task_log import keep_diary
from radioplat.tracking.wandb.artifacts import Product
from radioplat.tracking.wandb.task import kind_of, tell_task

MODEL, REPORT = "model_quantized", "quantize.json"


@dataclass(frozen=True)
class QuantizerReport:
    """One quantizer.

    Attributes:
        name: in the student.
        format: ``int8``, ``int4`` or ``fp8``.
        scales: how many.
        amax: the largest magnitude that it does not clip; of several scales the largest.
    """

    name: str
    format: str
    scales: int
    amax: float


@dataclass(frozen=True)
class LayerReport:
    """One quantized layer, or the residual branch of a block.

    Attributes:
        type: its class, or ``residual``.
    """

    name: str
    type: str
    weights: QuantizerReport | None = None
    activations: QuantizerReport | None = None


@dataclass(frozen=True)
class QuantizeReport:
    """What was quantized.

    Attributes:
        path: a checkpoint folder; ``radioplat.load_student`` opens it, and a spec's ``pretrained_model_path`` names it.
            With backend modelopt.onnx an ONNX file.
        skipped: linear layers and convolutions that stay float, and why.
        images: how many the ranges were measured on.
        cosine: mean over them of what the student says and said before, by ``summary`` and ``spatial``; of a detector
            by ``maps`` and ``memory``.
        folded: BatchNorms that went into the convolution before them.
        equalized: pairs of layers whose weights were balanced.
        notes: what else should be known, a sentence each.
        trained: with mode qat the run that trained it.
    """

    path: Path
    checkpoint: Path
    layers: list[LayerReport]
    skipped: dict[str, str]
    images: int
    cosine: dict[str, float]
    folded: int = 0
    equalized: int = 0
    notes: list[str] = field(default_factory=list)
    trained: RunResult | None = None

    @property
    def result(self) -> Path:
        """The checkpoint to go on with."""
        return self.path if self.trained is None else self.trained.checkpoint


def quantize(
    spec: Spec | dict | str | Path,
    overrides: Sequence[str] = (),
    *,
    callbacks: Sequence[Callback] = (),
    progress: bool = False,
    say: Callable[[str], None] = terminal.note,
) -> QuantizeReport:
    """Quantize ``quantize.checkpoint``, by default the latest student there is, and with mode qat train it.

    Args:
        callbacks, progress, say: of that training, as :func:`radioplat.launch.driver.distill` takes them.

    Raises:
        SpecError: fields of ``quantize`` contradict each other or name no layer, or the student is quantized already.
        DataError: there are no calibration images, or they are of one colour.
        EngineError, WeightsError: there is no checkpoint, or it cannot be read.
    """
    spec = load_spec(spec, overrides)
    if problems := list(quantize_problems(spec)):
        raise SpecError(*problems)
    folder = TaskFolder(spec.results_dir, "quantize", spec.quantize.results_dir)
    if spec.quantize.mode is QuantizeMode.qat:
        from radioplat.tasks.quantize.qat import quantize_and_train  # which begins with what is here

        report, trained = quantize_and_train(spec, folder, callbacks, progress, say)
        return replace(report, trained=trained)
    return post_train(spec, folder)


def post_train(spec: Spec, folder: TaskFolder) -> QuantizeReport:
    """Quantize by the backend that the spec names, and keep the task's diary."""
    run = BACKENDS[spec.quantize.backend]
    report = keep_diary(folder, "quantize", to_yaml(spec), lambda: run(spec, folder), _kpi)
    made = Product(report.path, kind_of(report.path), [report.checkpoint])
    tell_task(spec, folder.path, "quantize", figures=_kpi(report), made=made)
    return report


def calibrated(spec: Spec, folder: TaskFolder) -> QuantizeReport:
    """Post-training quantization with the project's own quantizers."""
    asked = spec.quantize
    path = find_checkpoint(spec, asked.checkpoint or asked.model_path, "quantize.checkpoint").resolve()
    model = load_quantizable(path, "quantize.checkpoint")
    device, notes = _device(asked.device)
    done: Quantized
    if isinstance(model, Detector):
        batches = calibration_images(spec, model.architecture.student.img_size, whole=True)
        done = quantize_detector(model, asked, batches, device)
    else:
        batches = calibration_images(spec, model.architecture.img_size)
        done = quantize_student(model, asked, batches, device)
    made: Student | Detector = done.model
    notes += [f"{name} saw nothing but zeros" for name in done.idle]
    notes += [
        f"BatchNorm {norm} stays behind the quantized {conv}, and costs a pass of its own: folded, outputs differed"
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
    write_quantized(made, report)
    return report


def load_quantizable(path: Path, where: str = "") -> Student | Detector:
    """The student or detector in ``path``.

    Raises:
        WeightsError: it cannot be read.
    """
    return load_detector(path, where) if is_detector(path) else load_student(path, where)


def skipped_layers(model: Student | Detector) -> dict[str, str]:
    """Linear layers and convolutions of a quantized model that stay float, and why."""
    form = model.architecture
    if isinstance(model, Student):
        return form.quantized.skipped
    return {f"{BACKBONE}{n}": why for n, why in form.student.quantized.skipped.items()} | form.quantized.skipped


def quantized_file(spec: Spec, folder: TaskFolder) -> QuantizeReport:
    """An exported file with quantizers."""
    from radioplat.tasks.quantize import onnx_file  # which begins with what is here

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


def layer_reports(student: Student | Detector) -> list[LayerReport]:
    """Every quantized layer and residual branch, in the model's order."""
    found = []
    for name, quantizer in quantizers(student).items():
        parent, _, leaf = name.rpartition(".")
        own = QuantizerReport(name, quantizer.format.value, quantizer.scale.numel(), float(quantizer.amax.max()))
        if leaf == "residual_quantizer":
            found.append(LayerReport(parent, "residual", None, own))
            continue
        if not found or found[-1].name != parent:
            kind = type(student.get_submodule(parent)).__name__.removeprefix("Quantized")
            found.append(LayerReport(parent, kind))
        last = found.pop()
        both = (own, last.activations) if leaf == "weight_quantizer" else (last.weights, own)
        found.append(LayerReport(last.name, last.type, *both))
    return found


def write_quantized(student: Student | Detector, report: QuantizeReport) -> None:
    """Write ``report.path``, aside and then renamed: what bears the name is whole."""
    aside = report.path.with_name(f".{report.path.name}.partial")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    if isinstance(student, Detector):
        save_detector(student, aside)
    else:
        save_student(student, student.state_dict(), aside)
    text = {**asdict(report), "path": str(report.path), "checkpoint": str(report.checkpoint)}
    (aside / REPORT).write_text(json.dumps(text, indent=1))
    shutil.rmtree(report.path, ignore_errors=True)
    os.rename(aside, report.path)


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
