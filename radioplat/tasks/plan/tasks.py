"""The checks of each task for ``plan``: those that the task itself makes, before its work begins."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from radioplat.common.imports import missing_extra
from radioplat.data.detection.split import read_split
from radioplat.data.loading.sample_images import sample_images
from radioplat.errors import Problem
from radioplat.evaluation.detection.coco import load_coco
from radioplat.evaluation.measure.needs import metric_facts
from radioplat.launch.preflight.preflight import Level
from radioplat.models.model_kind import ModelKind
from radioplat.models.vision_model import Architecture, open_architecture, open_model, weight_files
from radioplat.spec.checks.tasks.low_rank import low_rank_problems
from radioplat.spec.checks.tasks.quantize import (
    ONNX_BACKEND,
    TORCH_BACKEND,
    calibration_split,
    quantize_problems,
    replaced_backend,
)
from radioplat.spec.checks.tasks.training_run import check
from radioplat.spec.checks.tasks.training_task import command_of, command_with, is_taught
from radioplat.spec.schema.compress import Stage
from radioplat.spec.schema.quantize import QuantizeMode
from radioplat.spec.schema.retrain import RetrainConfig
from radioplat.spec.schema.root import Spec
from radioplat.tasks.compress.compress import checked_groups
from radioplat.tasks.compress.derive import stage_spec
from radioplat.tasks.distill.retrain import retraining_command, retraining_spec
from radioplat.tasks.evaluate import detectors, students
from radioplat.tasks.evaluate.evaluate import evaluated
from radioplat.tasks.evaluate.gate_metrics import gate_metric, gate_spec
from radioplat.tasks.export.engine import engine_file, open_engine_inputs
from radioplat.tasks.export.export import prepare_export
from radioplat.tasks.inference.inference import open_inputs
from radioplat.tasks.plan.accepts import accepted_tasks
from radioplat.tasks.plan.findings import Plan
from radioplat.tasks.plan.run import plan_run
from radioplat.tasks.plan.students import plan_students
from radioplat.tasks.prune.prune import pruned_checkpoint
from radioplat.tasks.quantize.post_training import quantized_path
from radioplat.tasks.quantize.qat import training_spec
from radioplat.tasks.quantize.report import MODEL
from radioplat.tasks.quantize.sensitivity import without_choices
from radioplat.tasks.shared.find_checkpoint import find_checkpoint, task_folder
from radioplat.tasks.tune.draw import draw_values
from radioplat.tasks.tune.sweep import make_plan, trial_spec
from radioplat.tasks.tune.trial_record import TrialRecord, read_trials
from radioplat.tasks.tune.tune import check_same_space
from radioplat.teachers.base.teacher import check_weights


def _run(command: str) -> Callable[[Spec, Plan], None]:
    def planned(spec: Spec, report: Plan) -> None:
        """Add the plan of the run."""
        if spec.distill.students and is_taught(command):
            report.include(plan_students(spec, command, Level.plan))
        else:
            report.include(plan_run(spec, command, task_folder(spec, command)))

    return planned


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _describe(report: Plan, path: Path, where: str) -> Architecture | None:
    """Record the model at ``path`` as a fact, and return its architecture."""
    architecture = report.attempt(open_architecture, path, where)
    if architecture is not None:
        size = sum(file.stat().st_size for file in weight_files(path) if file.is_file())
        student = architecture.student
        report.facts["model"] = f"{path}: {student.type} at {architecture.img_size} px, {size / 1e6:.1f} MB of weights"
        if report.free is not None and report.free < size:
            message = f"{report.free / 1e6:.1f} MB are free there, less than the weights of the model"
            report.problems.append(Problem(message, "results_dir", "Free some space, or name another folder."))
    return architecture


def _check_accepted(report: Plan, architecture: Architecture, task: str, where: str) -> None:
    """Add a problem if ``task`` refuses students of this architecture."""
    if architecture is not architecture.student:  # a detector
        return
    line = next(line for line in accepted_tasks(architecture.student) if line.task == task)
    if line.accepted is False:
        report.problems.append(Problem(line.detail, where))
    else:
        report.facts[task] = line.detail


def _evaluate(spec: Spec, report: Plan) -> None:
    chosen = report.attempt(evaluated, spec)
    if chosen is None:
        return
    kind, checkpoint = chosen
    if checkpoint is not None:
        _describe(report, checkpoint, "evaluate.checkpoint")
    if kind is ModelKind.detector:
        report.attempt(load_coco)
        _evaluate_detectors(spec, checkpoint, report)
        return
    inputs = report.attempt(students.open_inputs, spec, checkpoint, _device())
    if inputs is None:
        return
    for teacher in inputs.teachers:
        if teacher.weights:
            report.attempt(check_weights, teacher)
    names = [*inputs.opened.models, *(teacher.name for teacher in inputs.teachers)]
    report.facts["models"] = ", ".join(names)
    for model in inputs.opened.listed:
        if model.evaluated is None:
            report.warnings.append(f"{model.name} cannot run on this machine, and is a row without figures")
    report.facts["images"] = f"{len(inputs.bank.rows)} of training, {len(inputs.queries.rows)} held out"
    report.facts["metrics"] = "; ".join(["kNN where there are labels, fidelity", *metric_facts(spec)])


def _evaluate_detectors(spec: Spec, checkpoint: Path | None, report: Plan) -> None:
    if checkpoint is None:
        opened = report.attempt(detectors.open_inputs, spec, _device())
        split = opened and opened[1]
    else:
        model = report.attempt(open_model, checkpoint, "evaluate.checkpoint", spec.evaluate.use_ema)
        names = tuple(getattr(model, "class_names", ())) if model else tuple(spec.dataset.classes)
        split = report.attempt(read_split, spec.dataset.val_dataset, names, "dataset.val_dataset")
    if split:
        report.facts["images"] = f"{len(split.pictures)} held out, {len(split.classes)} classes; faults: {split.faults}"


def _inference(spec: Spec, report: Plan) -> None:
    if inputs := report.attempt(open_inputs, spec):
        report.facts["model"] = f"{inputs.path}, {inputs.model.kind}"
        report.facts["images"] = f"{len(inputs.images)} in {spec.dataset.test_dataset.images_dir}"


def _export(spec: Spec, report: Plan) -> None:
    prepared = report.attempt(prepare_export, spec)
    if prepared is None:
        return
    path = find_checkpoint(spec, spec.export.checkpoint, "export.checkpoint").resolve()
    _describe(report, path, "export.checkpoint")
    report.facts["format"] = spec.export.format.value
    if prepared.needs and prepared.needs.batches:
        report.facts["images"] = f"{sum(map(len, prepared.needs.batches))} for calibration"


def _engine(spec: Spec, report: Plan) -> None:
    if inputs := report.attempt(open_engine_inputs, spec):
        layers = ", ".join(f"{count} {name}" for name, count in inputs.file.formats.items()) or "none quantized"
        report.facts["file"] = f"{inputs.file.path}, {len(inputs.file.layers)} layers, {layers}"
        report.facts["engine"] = f"{engine_file(spec)}, {inputs.data_type}, {inputs.backend.value}: {inputs.reason}"


def _prune(spec: Spec, report: Plan) -> None:
    checkpoint = report.attempt(lambda: pruned_checkpoint(spec, dry=True))
    if checkpoint is None:
        return
    _describe(report, checkpoint, "prune.checkpoint")
    config = spec.prune
    if config.cut and config.score.needs_gradients:
        command = command_with(teachers=bool(spec.distill.teacher))
        report.problems += plan_run(spec, command, task_folder(spec, "prune"), Level.data).problems
    elif config.blocks:
        _check_images(spec, "train", report)
    _retrain(spec, config.retrain, checkpoint, task_folder(spec, "prune"), report)


def _low_rank(spec: Spec, report: Plan) -> None:
    report.problems += low_rank_problems(spec)
    path = report.attempt(find_checkpoint, spec, spec.low_rank.checkpoint, "low_rank.checkpoint")
    if path is None:
        return
    if architecture := _describe(report, path.resolve(), "low_rank.checkpoint"):
        _check_accepted(report, architecture, "low_rank", "low_rank.checkpoint")
    _retrain(spec, spec.low_rank.retrain, path.resolve(), task_folder(spec, "low_rank"), report)


def _retrain(spec: Spec, config: RetrainConfig, checkpoint: Path, folder: Path, report: Plan) -> None:
    """Plan the retraining that follows; from the student before, as the smaller one is not there yet."""
    if config.wanted and not report.problems:
        derived = retraining_spec(spec, config, checkpoint, folder / "retrain")
        command = retraining_command(spec, checkpoint)
        report.include(plan_run(derived, command, task_folder(derived, command)), "retraining")


def _quantize(spec: Spec, report: Plan) -> None:
    report.problems += quantize_problems(spec)
    if spec.quantize.backend in (ONNX_BACKEND, TORCH_BACKEND) and not replaced_backend(spec.quantize):
        purpose, instead = f"backend {spec.quantize.backend}", "Or set quantize.backend: native."
        report.problems += missing_extra("quantize", purpose, "quantize.backend", instead=instead)
    if report.problems:
        return
    if spec.quantize.backend == ONNX_BACKEND:
        from radioplat.exporting.onnx.modelopt import load_quantize  # of the extra
        from radioplat.tasks.quantize.onnx_file import open_source

        report.attempt(load_quantize)
        if source := report.attempt(open_source, spec):
            report.facts["file"] = str(source[0])
    elif path := report.attempt(quantized_path, spec):
        architecture = _describe(report, path.resolve(), "quantize.checkpoint")
        if architecture is not None:
            _check_accepted(report, architecture, "quantize", "quantize.checkpoint")
    _check_images(spec, calibration_split(spec), report)
    if spec.quantize.mode is QuantizeMode.qat:
        report.attempt(_quantized_training, spec, report)


def _quantized_training(spec: Spec, report: Plan) -> None:
    """Plan the training, from the quantized student if there is one, else from the student: it has the same layers."""
    quantized = task_folder(spec, "quantize") / MODEL
    start = quantized if quantized.exists() else quantized_path(spec)
    folder = Path(spec.quantize.qat.results_dir or Path(spec.results_dir) / "qat")
    changed, notes = training_spec(spec, start, folder)
    report.warnings += notes
    report.include(plan_run(changed, command_of(spec), folder))


def _sensitivity(spec: Spec, report: Plan) -> None:
    _quantize(without_choices(spec), report)


def _check_images(spec: Spec, split: str, report: Plan) -> None:
    """Read one image of a split, as the task reads many."""
    size = spec.dataset.img_size
    if (images := report.attempt(sample_images, spec, {size}, 1, split)) is not None and len(images[size]):
        report.facts["images"] = f"of dataset.{split}_dataset"


def _train_upsampler(spec: Spec, report: Plan) -> None:
    from radioplat.tasks.train_upsampler.photographs import open_photographs  # few use it
    from radioplat.tasks.train_upsampler.train_upsampler import TASK, upsampled_teacher

    report.problems += check(spec, TASK)
    if report.problems:
        return
    config = spec.train_upsampler
    teacher, factor = upsampled_teacher(spec)
    report.attempt(check_weights, teacher)
    seed = spec.train.seed if config.seed is None else config.seed
    if images := report.attempt(open_photographs, spec, factor * teacher.input_size, config.held_out, seed):
        report.facts["images"] = f"{len(images.training.rows)} for training, {len(images.held_out.rows)} held out"
    report.facts["teacher"] = f"{teacher.name} at {teacher.input_size} px, {factor} times finer"


def _compress(spec: Spec, report: Plan) -> None:
    groups = report.attempt(checked_groups, spec)
    if groups is None:
        return
    steps = [step for group in groups for step in group.steps]
    report.facts["stages"] = ", ".join(step.name for step in steps)
    gates = spec.compress.gates
    limit = "none" if gates.min_kept is None else f"{gates.min_kept:.1%} of {gate_metric(spec)}"
    report.facts["gate"] = f"{limit} (compress.gates)"
    if steps[0].stage is Stage.distill:
        first = stage_spec(spec, steps[0])
        first.results_dir = str(task_folder(spec, "compress") / steps[0].name)
        report.include(plan_run(first, command_of(first), Path(first.results_dir)))
        return
    path = report.attempt(find_checkpoint, spec, spec.compress.checkpoint, "compress.checkpoint")
    if path is not None:
        measuring = gate_spec(spec)
        measuring.evaluate.checkpoint = str(path.resolve())
        _evaluate(measuring, report)


# All tasks with a spec alone; `tune` has a search space, too.
PLANNED: dict[str, Callable[[Spec, Plan], None]] = {
    "distill": _run("distill"),
    "train": _run("train"),
    "train_upsampler": _train_upsampler,
    "evaluate": _evaluate,
    "inference": _inference,
    "prune": _prune,
    "low_rank": _low_rank,
    "quantize": _quantize,
    "sensitivity": _sensitivity,
    "compress": _compress,
    "export": _export,
    "gen_trt_engine": _engine,
}


def plan_sweep(spec: Spec, space: str | Path | Mapping[str, Any] | None, report: Plan) -> None:
    """Check a sweep, and plan its first trial."""
    if space is None:
        report.problems.append(Problem("a sweep needs its search space", "--space", "Name the file."))
        return
    sweep = report.attempt(make_plan, copy.deepcopy(spec), (), space)
    if sweep is None:
        return
    report.attempt(check_same_space, sweep, read_trials(sweep.home))
    task = sweep.space.task.value
    report.facts["trials"] = f"{sweep.trials} of {task}, by {sweep.space.search.algorithm.value}"
    trial = report.attempt(trial_spec, sweep, TrialRecord(0, draw_values(sweep.space, 0, sweep.value_of)))
    if trial is not None:
        inner = Plan()
        PLANNED[task](trial, inner)
        report.include(inner, "first trial")
