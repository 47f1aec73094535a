"""A smaller student trained on: an ordinary run, told where to begin and where to write."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

from radioplat.models.student.checkpoint import read_architecture
from radioplat.spec.schema.retrain import RetrainConfig, RetrainMode
from radioplat.spec.schema.root import Spec
from radioplat.spec.schema.train import Policy
from radioplat.tasks.distill.distill import distill, train

LOWER = 0.1  # of the rate of the run, for fine-tuning


def retrain(
    spec: Spec, config: RetrainConfig, start: Path, folder: Path, say: Callable[[str], None] | None = None
) -> Path:
    """Train the student of ``start`` as ``config`` says, in this process or on Ray as any run; go on where one stopped.

    Args:
        start: a checkpoint folder.
        folder: becomes the run's ``results_dir``.

    Returns:
        The run's last checkpoint.

    Raises:
        RadioplatError: as :func:`radioplat.tasks.distill.distill.distill`.
    """
    # A student without heads was taught by labels.
    run = distill if spec.distill.teacher and read_architecture(start, "").heads else train
    return run(retraining_spec(spec, config, start, folder), say=say).checkpoint.resolve()


def retraining_spec(spec: Spec, config: RetrainConfig, start: Path, folder: Path) -> Spec:
    """The spec of that run: ``spec`` with another beginning, length and rate, in one stage, no task after it."""
    derived = copy.deepcopy(spec)
    derived.results_dir, derived.distill.results_dir, derived.distill.then = str(folder), None, []
    derived.distill.stages = []
    derived.dataset.index_dir = spec.dataset.index_dir or str(Path(spec.results_dir) / "index")
    derived.model.backbone.pretrained_backbone_path = None
    run, optim = derived.train, derived.train.optim
    run.pretrained_model_path, run.resume_training_checkpoint_path = str(start), None
    if run.checkpoint_dir:
        run.checkpoint_dir = f"{run.checkpoint_dir}/{folder.parent.name}/{folder.name}"
    run.max_steps = config.steps
    length = config.epochs or config.steps
    assert length is not None  # who calls this wants a retraining
    run.num_epochs = length  # an epoch has a step at least
    optim.head_warmup_epochs = 0.0
    before = optim.lr
    if config.mode is RetrainMode.finetune:
        optim.lr = config.lr or LOWER * before
        optim.policy, optim.policy_params, optim.warmup_epochs = Policy.linear, {"min_lr": optim.lr}, 0.0
    else:
        optim.lr = config.lr or before
    if optim.projector_lr is not None:
        optim.projector_lr *= optim.lr / before
    return derived
