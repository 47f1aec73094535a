"""``quantize.mode: qat``: quantize after training, then distil the quantized student from the same teachers.

The second half is a distillation like any other, with its own folder, whose student begins as ``model_quantized``. The
same command goes on where it stopped: the first half is done once, and is left alone as long as what it was made of
stays the same.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from radioplat.design.tasks.registry import model_task_of, task_for
from radioplat.errors import Problem, SpecError
from radioplat.launch.driver import RunResult, run_task
from radioplat.models.model_kind import ModelKind
from radioplat.models.student.checkpoint import EMA_FILE
from radioplat.models.vision_model import model_kind, open_model, weight_files
from radioplat.spec.checks.tasks.quantize import calibration_split
from radioplat.spec.checks.tasks.run import check
from radioplat.spec.checks.tasks.training_task import command_of
from radioplat.spec.schema.root import Spec
from radioplat.tasks.quantize.post_training import post_train
from radioplat.tasks.quantize.report import MODEL, REPORT, QuantizeReport, layer_reports
from radioplat.tasks.shared.find_checkpoint import find_checkpoint
from radioplat.tracking.follow import Callback
from radioplat.tracking.results import TaskFolder, write_atomic

MADE_OF = "made_of.json"
_OF_THE_TRAINING = ("dataset.batch_size", "dataset.max_pixels", "dataset.train_dataset")


def quantize_and_train(
    spec: Spec, folder: TaskFolder, callbacks: Sequence[Callback], progress: bool, say: Callable[[str], None]
) -> tuple[QuantizeReport, RunResult]:
    """Both halves.

    Args:
        folder: of the task ``quantize``; the run's is ``quantize.qat.results_dir``, by default ``results_dir/qat``.
        say: called with each line for the user.

    Raises:
        RadioplatError: as :func:`radioplat.tasks.quantize.quantize.quantize` and
            :func:`radioplat.tasks.distill.distill.distill`.
    """
    start, task = folder.path / MODEL, command_of(spec)
    home = TaskFolder(spec.results_dir, "qat", spec.quantize.qat.results_dir)
    changed, notes = training_spec(spec, start, home.path)
    if problems := check(changed, task):
        raise SpecError(*problems)
    made_of = _made_of(spec)
    kind = model_kind(made_of["checkpoint"]) or ModelKind.student
    if kind is not task_for(spec).model_kind:
        hint = f"Set it to {model_task_of(kind).value}."
        raise SpecError(f"{made_of['checkpoint']} is a {kind.value}", where="model.task", hint=hint)
    report = _done(start, made_of, begun=bool(home.checkpoints()))
    if report is None:
        report = post_train(spec, folder)
        write_atomic(start / MADE_OF, json.dumps(made_of, indent=1))
    else:
        say(f"{start}: quantized already")
    for note in notes:
        say(note)
    return report, run_task(changed, task, str(home.path), callbacks, progress, say)


def training_spec(spec: Spec, start: Path, folder: Path) -> tuple[Spec, list[str]]:
    """The spec of the run that trains what lies in ``start``, and sentences about what of ``spec`` it leaves out."""
    own, train, notes = spec.quantize.qat, spec.train, list[str]()
    # The file says which backbone it holds, folded and pruned as it is.
    backbone = dataclasses.replace(
        spec.model.backbone, type=None, kwargs={}, pretrained_backbone_path=None, spectral_reparam=False
    )
    before = train.optim
    optim = dataclasses.replace(before, lr=own.lr or before.lr, head_warmup_epochs=0.0)
    if optim.projector_lr is not None:
        optim.projector_lr *= optim.lr / before.lr
    if train.damp:
        notes.append("train.damp is left out: noise on weights would be rounded away by their quantizers")
    mirror = None if train.checkpoint_dir is None else f"{train.checkpoint_dir.rstrip('/')}/qat"
    train = dataclasses.replace(
        train,
        pretrained_model_path=str(start),
        resume_training_checkpoint_path=None,
        checkpoint_dir=mirror,  # the first training's has its place there
        # What is said of its length stands in place of all that train says; an epoch has a step at least.
        num_epochs=own.num_epochs or own.max_steps or train.num_epochs,
        max_steps=own.max_steps if own.num_epochs or own.max_steps else train.max_steps,
        optim=optim,
        damp=0.0,
    )
    if spec.distill.stages:
        notes.append("distill.stages are left out: all teachers teach from the first step on")
    if spec.distill.decoder_from_teacher:
        notes.append("distill.decoder_from_teacher is left out: the quantized detector has a decoder of its own")
    distill = dataclasses.replace(spec.distill, stages=[], then=[], results_dir=str(folder), decoder_from_teacher=False)
    model = dataclasses.replace(spec.model, backbone=backbone)
    return dataclasses.replace(spec, model=model, train=train, distill=distill), notes


def _made_of(spec: Spec) -> dict[str, Any]:
    """What the quantized student follows from, as JSON holds it."""
    asked = spec.quantize
    path = find_checkpoint(spec, asked.checkpoint or asked.model_path, "quantize.checkpoint").resolve()
    files = [*weight_files(path), path / EMA_FILE]
    digests = {file.name: _digest(file) for file in files if file.is_file()}
    fields = dataclasses.asdict(asked)
    for name in ("results_dir", "device", "qat", "checkpoint", "model_path"):
        del fields[name]
    split = f"{calibration_split(spec)}_dataset"
    images = {split: dataclasses.asdict(getattr(spec.dataset, split))}
    del images[split]["prefetch"]  # how they are read changes nothing
    images |= {name: getattr(spec.dataset, name) for name in ("batch_size", "max_pixels")}
    made_of = {"checkpoint": str(path), "student": digests, "quantize": fields, "dataset": images}
    return json.loads(json.dumps(made_of))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _changed(made_of: dict[str, Any], known: dict[str, Any]) -> Iterator[str]:
    """The fields that say otherwise than those that a quantized student was made by."""
    for section in ("quantize", "dataset"):
        now, then = made_of[section], known.get(section, {})
        yield from (f"{section}.{name}" for name in sorted({*now, *then}) if now.get(name) != then.get(name))
    if any(made_of[name] != known.get(name) for name in ("checkpoint", "student")):
        yield "quantize.checkpoint"


def _done(start: Path, made_of: dict[str, Any], begun: bool) -> QuantizeReport | None:
    """What an earlier start quantized; None where that is to be done.

    Raises:
        SpecError: training has begun from something else.
    """
    file = start / MADE_OF
    known = json.loads(file.read_text()) if file.is_file() else None
    if known is None:
        return None
    changed = list(_changed(made_of, known))
    if begun:  # the ranges are measured; whether the training may go on with these is for the training to say
        changed = [where for where in changed if where not in _OF_THE_TRAINING]
    if changed and begun:
        said = "it has changed since the training of the quantized student began"
        hint = "Undo the change, or choose another results_dir."
        raise SpecError(*(Problem(said, where, hint) for where in changed))
    if changed:
        return None
    said = json.loads((start / REPORT).read_text())
    said |= {"path": start, "checkpoint": Path(said["checkpoint"]), "layers": layer_reports(open_model(start))}
    return QuantizeReport(**said)
