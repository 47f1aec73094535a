"""Students of ``evaluate.models``: checkpoints, ONNX files and engines, each opened as an encoder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch

from radioplat.common.imports import require_extra
from radioplat.compression.cost import Cost, cost_of
from radioplat.errors import Problem, RadioplatError, SpecError
from radioplat.evaluation.models.engine import EngineModel
from radioplat.evaluation.models.evaluated_model import (
    Encoder,
    EvaluatedModel,
    NamedHeads,
    StudentHeads,
    in_precision,
    student_encoder,
)
from radioplat.evaluation.models.view_sizes import size_problems, student_size
from radioplat.exporting.onnx.flat_student import LOGITS
from radioplat.models.features import Features
from radioplat.models.quantized.quantizer import count_scales, quantizers
from radioplat.models.student.architecture import StudentArchitecture
from radioplat.models.student.checkpoint import instead_of_student, is_checkpoint, load_student
from radioplat.models.vision_model import weight_files
from radioplat.models.weights.model_format import has_average
from radioplat.spec.checks.tasks.evaluate_models import FILES
from radioplat.spec.resolved.number_formats import DATA_TYPES
from radioplat.spec.schema.evaluate import EvaluationPrecision, ModelEntry
from radioplat.spec.schema.root import Spec

if TYPE_CHECKING:
    from radioplat.evaluation.models.onnx_file import OnnxModel

Listed = TypeVar("Listed")


@dataclass(frozen=True)
class ListedModel:
    """A model of ``evaluate.models``.

    Attributes:
        where: its field, ``evaluate.models[0]``.
        kind: format and precision: ``torch fp16``, ``ONNX int8``.
        bytes: on disk, with external weights; for a checkpoint the student's weights.
        evaluated: None if it cannot run on this machine.
        absent: a sentence for each metric that cannot be measured, with the reason.
        cost: of its backbone for one image, without scales of quantizers; None for a file.
        engine: None for anything but an engine.
        architecture: None for a file.
        classifies: whether it has a classifier.
    """

    name: str
    where: str
    path: Path
    kind: str
    bytes: int
    evaluated: EvaluatedModel | None
    absent: tuple[str, ...] = ()
    cost: Cost | None = None
    engine: EngineModel | None = None
    architecture: StudentArchitecture | None = None
    classifies: bool = False


def open_models(spec: Spec, device: str) -> list[ListedModel]:
    """Open all of ``evaluate.models``, in their order.

    Raises:
        SpecError: with a problem for each that is no model, cannot be read, or contradicts its fields.
    """
    threads = max(1, torch.get_num_threads() // max(1, len(spec.evaluate.models)))
    models, problems = open_each(spec, lambda entry, where: open_listed(spec, entry, where, device, threads))
    if not problems and not any(model.evaluated for model in models):
        reasons = "; ".join(line for model in models for line in model.absent)
        problems.append(Problem(f"none of them can run here: {reasons}", "evaluate.models"))
    if problems:
        raise SpecError(*dict.fromkeys(problems))
    return models


def open_each(spec: Spec, open_one: Callable[[ModelEntry, str], Listed]) -> tuple[list[Listed], list[Problem]]:
    """Open ``evaluate.models``, each entry by ``open_one`` with its field; also return the problems of those that
    cannot be opened."""
    models, problems = list[Listed](), list[Problem]()
    for i, entry in enumerate(spec.evaluate.models):
        try:
            models.append(open_one(entry, f"evaluate.models[{i}]"))
        except RadioplatError as error:
            problems += error.problems
    return models, problems


def open_file(path: Path, field: str, device: str, threads: int) -> OnnxModel | EngineModel | None:
    """Open an ONNX file or an engine, which the spec's ``field`` names; None for anything else that exists."""
    if not path.exists():
        raise SpecError(f"there is no {path}", where=field, hint="Give a checkpoint folder, an .onnx or an .engine.")
    kind = path.suffix.lower()
    if kind not in FILES:
        return None
    require_extra("onnx", f"an {kind} file", field)
    if kind == ".engine":
        return EngineModel(path, field, device)
    from radioplat.evaluation.models.onnx_file import OnnxModel

    return OnnxModel(path, field, threads, device)


def averages_of(spec: Spec, path: Path) -> bool | None:
    """Return the argument ``ema`` for a checkpoint; ``evaluate.use_ema: true`` applies only to those with averages."""
    return None if spec.evaluate.use_ema and not has_average(path) else spec.evaluate.use_ema


def open_listed(
    spec: Spec, entry: ModelEntry, where: str, device: str, threads: int, field: str | None = None
) -> ListedModel:
    """Open a student: a checkpoint, an ONNX file or an engine.

    Args:
        where: field of the entry.
        threads: of one run of an ONNX file.
        field: of the path; None: ``<where>.path``.

    Raises:
        RadioplatError: it is no student, cannot be read, or contradicts its fields.
    """
    path, field = Path(entry.path), field or f"{where}.path"
    if (file := open_file(path, field, device, threads)) is not None:
        return _of_file(spec, entry, where, field, file)
    if not is_checkpoint(path):
        raise SpecError(
            f"{path} is no model that can be evaluated",
            where=field,
            hint=instead_of_student(path)
            or "Give a checkpoint folder (model_epoch_... or model_pruned), the .safetensors of export, or an .onnx.",
        )
    return _of_checkpoint(spec, entry, where, field, device)


def _of_checkpoint(spec: Spec, entry: ModelEntry, where: str, field: str, device: str) -> ListedModel:
    path = Path(entry.path).resolve()
    student = load_student(path, field, averages_of(spec, path))
    architecture, precision = student.architecture, entry.precision or EvaluationPrecision.fp32
    formats = sorted({quantizer.format.value for quantizer in quantizers(student).values()})
    if formats and precision is not EvaluationPrecision.fp32:
        hint = "Fake quantization rounds in fp32; remove the line."
        raise SpecError(
            f"a quantized model is evaluated in fp32, not {precision.value}", where=f"{where}.precision", hint=hint
        )
    size = student_size(spec, architecture)
    if problems := list(size_problems(architecture, {"dataset.val_img_size": size})):
        raise SpecError(*problems)
    cost = cost_of(student.backbone, size)
    cost = replace(cost, params=cost.params - count_scales(student.backbone))
    student = in_precision(student, getattr(torch, DATA_TYPES[precision.value].torch_type)).to(device)
    kind = f"torch fake-quant {'/'.join(formats)}" if formats else f"torch {precision.value}"
    encode = _finite(student_encoder(student), field, kind)
    model = EvaluatedModel(encode, size, StudentHeads(student), where=field)
    bytes_on_disk = sum(file.stat().st_size for file in weight_files(path))
    return ListedModel(
        entry.name, where, path, kind, bytes_on_disk, model, (), cost,
        architecture=architecture, classifies=architecture.num_classes > 0,
    )  # fmt: skip


def _of_file(spec: Spec, entry: ModelEntry, where: str, field: str, file: OnnxModel | EngineModel) -> ListedModel:
    size = file.interface.size_for(spec.dataset.val_img_size, spec.dataset.img_size)
    heads, absent = NamedHeads(file.interface.head_widths), list[str]()
    if file.reason:
        absent.append(file.reason)
    elif not heads.names:
        absent.append("fidelity: the file has no heads; name them in export.adaptors")
    encode = _finite(file.encode, field, file.kind)
    model = None if file.reason else EvaluatedModel(encode, size, heads, where=field)
    engine = file if isinstance(file, EngineModel) else None
    return ListedModel(
        entry.name, where, file.path, file.kind, file.bytes, model, tuple(absent),
        engine=engine, classifies=LOGITS in file.interface.outputs,
    )  # fmt: skip


def _finite(encode: Encoder, where: str, kind: str) -> Encoder:
    """Wrap ``encode`` to raise an error that names the model if a feature is not finite."""

    def checked(images: torch.Tensor) -> Features:
        """Encode, and check that the features are finite."""
        features = encode(images)
        for tensor in (features.summary, features.spatial, *features.named.values()):
            if tensor is not None and not tensor.isfinite().all():
                hint = "fp16 ends at 65504: take bf16 or fp32." if "fp16" in kind else "Its weights are broken."
                raise RadioplatError(f"its features are not finite ({kind})", where=where, hint=hint)
        return features

    return checked
