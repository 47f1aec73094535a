"""Retraining of a smaller student: an ordinary run that starts from its checkpoint."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

from radioplat.models.student.checkpoint import read_architecture
from radioplat.spec.checks.tasks.training_task import command_with, is_taught
from radioplat.spec.schema.retrain import RetrainConfig, RetrainMode
from radioplat.spec.schema.root import Spec
from radioplat.spec.schema.train import Policy
from radioplat.tasks.distill.distill import distill, train

FINETUNE_LR = 0.1  # default learning rate of fine-tuning, relative to the run's


def retrain(
    spec: Spec, config: RetrainConfig, start: Path, folder: Path, say: Callable[[str], None] | None = None
) -> Path:
    """Train the student of ``start`` by ``config``, in this process or on Ray; a rerun continues where it stopped.

    Args:
        start: a checkpoint folder.
        folder: the ``results_dir`` of the run.

    Returns:
        The run's last checkpoint.

    Raises:
        RadioplatError: as :func:`radioplat.tasks.distill.distill.distill`.
    """
    run = distill if is_taught(retraining_command(spec, start)) else train
    return run(retraining_spec(spec, config, start, folder), say=say).checkpoint.resolve()


def retraining_command(spec: Spec, start: Path) -> str:
    """Return the command, ``distill`` or ``train``, that retrains the student of ``start``, a checkpoint folder."""
    # A student with classes and without heads was trained on labels; one with neither are pretrained weights.
    architecture = read_architecture(start, "")
    taught = bool(architecture.heads) or not architecture.num_classes
    return command_with(teachers=bool(spec.distill.teacher) and taught)


def retraining_spec(spec: Spec, config: RetrainConfig, start: Path, folder: Path) -> Spec:
    """Return the spec of that run: ``spec`` with another start, length and learning rate, without later stages."""
    derived = copy.deepcopy(spec)
    derived.results_dir, derived.distill.results_dir, derived.distill.then = str(folder), None, []
    derived.distill.stages, derived.distill.students = [], []
    derived.dataset.index_dir = spec.dataset.index_dir or str(Path(spec.results_dir) / "index")
    derived.model.backbone.pretrained_backbone_path = None
    run, optim = derived.train, derived.train.optim
    run.pretrained_model_path, run.resume_training_checkpoint_path = str(start), None
    if run.checkpoint_dir:
        run.checkpoint_dir = f"{run.checkpoint_dir}/{folder.parent.name}/{folder.name}"
    run.max_steps = config.steps
    length = config.epochs or config.steps
    assert length is not None  # the caller checks that retraining is requested
    run.num_epochs = length  # an epoch has at least one step
    optim.head_warmup_epochs = 0.0
    before = optim.rate
    if config.lr is None and optim.lr is None:
        return derived  # the rate is chosen by what the student starts from, with the spec's schedule
    if config.mode is RetrainMode.finetune:
        optim.lr = config.lr or FINETUNE_LR * before
        optim.policy, optim.policy_params, optim.warmup_epochs = Policy.linear, {"min_lr": optim.lr}, 0.0
    else:
        optim.lr = config.lr or optim.lr
    if optim.projector_lr is not None:
        optim.projector_lr *= optim.rate / before
    return derived
