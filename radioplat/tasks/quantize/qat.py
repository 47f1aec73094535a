"""``quantize.mode: qat``: post-training quantization, then distillation of the quantized student.

The distillation is an ordinary run with its own folder, whose student starts from ``model_quantized``. A rerun
continues where it stopped; the quantization is repeated only if its inputs changed.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from radioplat.common.hashing import file_hash
from radioplat.design.tasks.registry import model_task_of, task_for
from radioplat.errors import Problem, SpecError
from radioplat.launch.driver import RunResult, run_task
from radioplat.models.model_kind import ModelKind
from radioplat.models.vision_model import model_kind, open_model, weight_files
from radioplat.models.weights.model_format import EMA_FILE
from radioplat.spec.checks.tasks.quantize import calibration_split
from radioplat.spec.checks.tasks.training_run import check
from radioplat.spec.checks.tasks.training_task import command_of
from radioplat.spec.schema.root import Spec
from radioplat.tasks.quantize.post_training import post_train, quantized_path
from radioplat.tasks.quantize.report import MODEL, REPORT, QuantizeReport, layer_reports
from radioplat.tracking.follow import Callback
from radioplat.tracking.results import TaskFolder, write_atomic

INPUTS = "made_of.json"
_CHECKED_BY_RUN = ("dataset.batch_size", "dataset.max_pixels", "dataset.train_dataset")


def quantize_and_train(
    spec: Spec, folder: TaskFolder, callbacks: Sequence[Callback], progress: bool, say: Callable[[str], None]
) -> tuple[QuantizeReport, RunResult]:
    """Quantize the student, then train it.

    Args:
        folder: of the task ``quantize``; the run's is ``quantize.qat.results_dir``, by default ``results_dir/qat``.
        say: called with each message for the user.

    Raises:
        RadioplatError: as :func:`radioplat.tasks.quantize.quantize.quantize` and
            :func:`radioplat.tasks.distill.distill.distill`.
    """
    start, task = folder.path / MODEL, command_of(spec)
    home = TaskFolder(spec.results_dir, "qat", spec.quantize.qat.results_dir)
    changed, notes = training_spec(spec, start, home.path)
    if problems := check(changed, task):
        raise SpecError(*problems)
    inputs = _inputs(spec)
    kind = model_kind(inputs["checkpoint"]) or ModelKind.student
    if kind is not task_for(spec).model_kind:
        hint = f"Set it to {model_task_of(kind).value}."
        raise SpecError(f"{inputs['checkpoint']} is a {kind.value}", where="model.task", hint=hint)
    report = _earlier_report(start, inputs, training_began=bool(home.checkpoints()))
    if report is None:
        report = post_train(spec, folder)
        write_atomic(start / INPUTS, json.dumps(inputs, indent=1))
    else:
        say(f"{start}: quantized already")
    for note in notes:
        say(note)
    return report, run_task(changed, task, str(home.path), callbacks, progress, say)


def training_spec(spec: Spec, start: Path, folder: Path) -> tuple[Spec, list[str]]:
    """Return the spec of the run that trains the student in ``start``, and notes on ignored fields of ``spec``."""
    own, train, notes = spec.quantize.qat, spec.train, list[str]()
    # The checkpoint describes its backbone, folded and pruned.
    backbone = dataclasses.replace(
        spec.model.backbone, type=None, kwargs={}, pretrained_backbone_path=None, spectral_reparam=False
    )
    before = train.optim
    optim = dataclasses.replace(before, lr=own.lr or before.lr, head_warmup_epochs=0.0)
    if optim.projector_lr is not None:
        optim.projector_lr *= optim.rate / before.rate
    if train.damp:
        notes.append("train.damp is left out: noise on weights would be rounded away by their quantizers")
    mirror = None if train.checkpoint_dir is None else f"{train.checkpoint_dir.rstrip('/')}/qat"
    train = dataclasses.replace(
        train,
        pretrained_model_path=str(start),
        resume_training_checkpoint_path=None,
        checkpoint_dir=mirror,  # the first training uses the folder itself
        # A length in quantize.qat replaces both fields of train. An epoch has at least one step.
        num_epochs=own.num_epochs or own.max_steps or train.num_epochs,
        max_steps=own.max_steps if own.num_epochs or own.max_steps else train.max_steps,
        optim=optim,
        damp=0.0,
    )
    if spec.distill.stages:
        notes.append("distill.stages are left out: all teachers teach from the first step on")
    for part in ("decoder", "encoder"):
        if getattr(spec.distill, f"{part}_from_teacher"):
            notes.append(f"distill.{part}_from_teacher is left out: the quantized detector has its own {part}")
    distill = dataclasses.replace(
        spec.distill,
        stages=[],
        then=[],
        results_dir=str(folder),
        decoder_from_teacher=False,
        encoder_from_teacher=False,
    )
    model = dataclasses.replace(spec.model, backbone=backbone)
    return dataclasses.replace(spec, model=model, train=train, distill=distill), notes


def _inputs(spec: Spec) -> dict[str, Any]:
    """Return everything that determines the quantized student, as JSON: checkpoint, weights, settings and images."""
    config = spec.quantize
    path = quantized_path(spec).resolve()
    files = [*weight_files(path), path / EMA_FILE]
    digests = {file.name: file_hash(file) for file in files if file.is_file()}
    fields = dataclasses.asdict(config)
    for name in ("results_dir", "device", "qat", "checkpoint", "model_path"):
        del fields[name]
    split = f"{calibration_split(spec)}_dataset"
    images = {split: dataclasses.asdict(getattr(spec.dataset, split))}
    del images[split]["prefetch"]  # has no effect on the images
    images |= {name: getattr(spec.dataset, name) for name in ("batch_size", "max_pixels")}
    return json.loads(json.dumps({"checkpoint": str(path), "student": digests, "quantize": fields, "dataset": images}))


def _changed(inputs: dict[str, Any], known: dict[str, Any]) -> Iterator[str]:
    """Yield the fields that differ from those of an earlier quantization."""
    for section in ("quantize", "dataset"):
        now, then = inputs[section], known.get(section, {})
        yield from (f"{section}.{name}" for name in sorted({*now, *then}) if now.get(name) != then.get(name))
    if any(inputs[name] != known.get(name) for name in ("checkpoint", "student")):
        yield "quantize.checkpoint"


def _earlier_report(start: Path, inputs: dict[str, Any], training_began: bool) -> QuantizeReport | None:
    """Return the report of an earlier quantization by the same ``inputs``; None if it must be done.

    Raises:
        SpecError: the inputs changed since training began.
    """
    file = start / INPUTS
    if not file.is_file():
        return None
    changed = list(_changed(inputs, json.loads(file.read_text())))
    if training_began:  # the run itself checks whether it can continue with other images
        changed = [where for where in changed if where not in _CHECKED_BY_RUN]
        if changed:
            message = "it has changed since the training of the quantized student began"
            hint = "Undo the change, or choose another results_dir."
            raise SpecError(*(Problem(message, where, hint) for where in changed))
    if changed:
        return None
    report = json.loads((start / REPORT).read_text())
    report |= {"path": start, "checkpoint": Path(report["checkpoint"]), "layers": layer_reports(open_model(start))}
    return QuantizeReport(**report)
