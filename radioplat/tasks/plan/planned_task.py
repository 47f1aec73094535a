"""The run that ``plan`` plans: its task and its spec."""

from __future__ import annotations

import contextlib
from pathlib import Path

from radioplat.errors import EngineError, SpecError
from radioplat.spec.checks.tasks.quantize import quantize_problems
from radioplat.spec.checks.tasks.training_task import COMMANDS, command_of, command_with, is_taught, training_task
from radioplat.spec.schema.quantize import QuantizeMode
from radioplat.spec.schema.root import Spec
from radioplat.tasks.quantize.qat import training_spec
from radioplat.tasks.quantize.report import MODEL
from radioplat.tasks.shared.find_checkpoint import find_checkpoint, task_folder

TASKS = (*COMMANDS, "quantize")


def next_task(spec: Spec) -> tuple[str, str]:
    """Return the task that a spec describes, and the reason if it is not a distillation."""
    if spec.quantize.mode is QuantizeMode.qat:
        with contextlib.suppress(EngineError):  # without a checkpoint the run before it is planned
            why = f"quantize.mode is qat, and there is a checkpoint, {_find(spec)}"
            return "quantize", f"quantize: {why}; --task distill plans the run before it"
    if not spec.distill.teacher and not training_task(spec).has_labels(spec):
        return command_with(teachers=True), ""  # reports the missing teachers
    command = command_of(spec)
    return command, "" if is_taught(command) else f"{command}: the spec has labels and no teachers"


def trained_by(spec: Spec, task: str) -> tuple[Spec, str, Path, list[str]]:
    """Return the spec of the run that ``task`` starts, the run's task and folder, and notes on ignored fields.

    The run of ``quantize`` is the training of ``quantize.mode: qat``. It is planned from the quantized student if there
    is one, else from the student to quantize, which has the same layers.

    Raises:
        SpecError: ``quantize`` has no training, or its fields contradict each other.
        EngineError: there is no student to quantize.
    """
    if task != "quantize":
        return spec, task, task_folder(spec, task), []
    if problems := list(quantize_problems(spec)):
        raise SpecError(*problems)
    if spec.quantize.mode is not QuantizeMode.qat:
        hint = "Set it to qat to plan that training."
        raise SpecError("post-training quantization starts no run", where="quantize.mode", hint=hint)
    quantized = task_folder(spec, "quantize") / MODEL
    start = quantized if quantized.exists() else _find(spec)
    folder = Path(spec.quantize.qat.results_dir or Path(spec.results_dir) / "qat")
    changed, notes = training_spec(spec, start, folder)
    return changed, command_of(spec), folder, notes


def _find(spec: Spec) -> Path:
    return find_checkpoint(spec, spec.quantize.checkpoint or spec.quantize.model_path, "quantize.checkpoint")
