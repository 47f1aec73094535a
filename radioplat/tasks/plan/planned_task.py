"""Which run ``plan`` plans: the task, and the spec that the run of that task has."""

from __future__ import annotations

from pathlib import Path

from radioplat.errors import EngineError, SpecError
from radioplat.spec.checks.tasks.quantize import quantize_problems
from radioplat.spec.checks.training.detection import detects
from radioplat.spec.schema.quantize import QuantizeMode
from radioplat.spec.schema.root import Spec
from radioplat.tasks.export.export import find_checkpoint, task_folder
from radioplat.tasks.quantize.qat import training_spec
from radioplat.tasks.quantize.report import MODEL

TASKS = ("distill", "train", "quantize")


def next_task(spec: Spec) -> tuple[str, str]:
    """The task that a spec is for, and why where it is not a distillation: in words, with the way to another."""
    if spec.quantize.mode is QuantizeMode.qat and _student(spec) is not None:
        why = f"quantize.mode is qat, and {_student(spec)} is there to be quantized"
        return "quantize", f"quantize: {why}; --task distill plans the run before it"
    if not spec.distill.teacher and (spec.dataset.num_classes > 0 or detects(spec)):
        return "train", "train: the spec has labels and no teachers"
    return "distill", ""


def trained_by(spec: Spec, task: str) -> tuple[Spec, str, list[str]]:
    """The spec of the run that ``task`` starts, the run's own task, and sentences about what it leaves out.

    That of ``quantize`` is the training of ``quantize.mode: qat``. It is planned from the quantized student where there
    is one, else from the one to be quantized, which has the same layers.

    Raises:
        SpecError: ``quantize`` trains nothing, or contradicts itself.
        EngineError: there is no student that it could quantize.
    """
    if task != "quantize":
        return spec, task, []
    if problems := list(quantize_problems(spec)):
        raise SpecError(*problems)
    if spec.quantize.mode is not QuantizeMode.qat:
        hint = "Set it to qat to plan that training."
        raise SpecError("quantizing after training starts no run", where="quantize.mode", hint=hint)
    quantized = task_folder(spec, "quantize") / MODEL
    start = quantized if quantized.exists() else _find(spec)
    folder = Path(spec.quantize.qat.results_dir or Path(spec.results_dir) / "qat")
    changed, notes = training_spec(spec, start, folder)
    return changed, "distill" if spec.distill.teacher else "train", notes


def _student(spec: Spec) -> Path | None:
    try:
        return _find(spec)
    except EngineError:
        return None


def _find(spec: Spec) -> Path:
    return find_checkpoint(spec, spec.quantize.checkpoint or spec.quantize.model_path, "quantize.checkpoint")
