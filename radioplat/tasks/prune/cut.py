"""One cut: a student or detector made smaller once, by the weights that it has and the data of its run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch

from radioplat.compression.cost import Cost, cost_of
from radioplat.compression.pruning.budget import within_budget
from radioplat.compression.pruning.detector import prune_detector
from radioplat.compression.pruning.prune import Aim, Cuts, prune_and_tell
from radioplat.compression.pruning.scores import ChannelScore
from radioplat.compression.pruning.sparsify import Sparsified, sparsify
from radioplat.design.run import Run, keep_data
from radioplat.errors import SpecError
from radioplat.launch.preflight.steps import prepare
from radioplat.models.detectors.base import Detector
from radioplat.models.detectors.checkpoint import is_detector, load_detector
from radioplat.models.student.checkpoint import load_student
from radioplat.models.student.student import Student
from radioplat.models.vision_model import VisionModel
from radioplat.spec.checks.tasks.training_task import command_with
from radioplat.spec.schema.prune import PruneConfig, PruneMode
from radioplat.spec.schema.root import Spec
from radioplat.tasks.prune.score_pass import first_batches, score_student


@dataclass(frozen=True)
class Cut:
    """What was cut.

    Attributes:
        student: what is left.
        config: as asked, with the amount that a budget found.
        cuts: where; None where no channel and no block was to go.
        sparse: which weights are zero, where that was asked for.
        before, after: what the backbone took and takes; zeros count like any number.
    """

    student: VisionModel
    config: PruneConfig
    cuts: Cuts | None
    sparse: Sparsified | None
    before: Cost
    after: Cost


def cut(spec: Spec, config: PruneConfig, checkpoint: Path, folder: Path, aim: Aim | None = None) -> Cut:
    """Cut the student or detector of ``checkpoint`` as ``config`` says, which takes the place of ``spec.prune``.

    Args:
        folder: where the index of the data lies that scores are taken on.
        aim: of rounds.

    Raises:
        SpecError: the backbone cannot be pruned so.
        WeightsError: the checkpoint cannot be read.
    """
    if is_detector(checkpoint):
        return _cut_detector(config, checkpoint)
    student, score = load_student(checkpoint, "prune.checkpoint"), ChannelScore(config, spec.train.seed)
    images = None
    goes = bool(config.cut or config.blocks)
    if config.blocks or (config.cut and score.needs_gradients):
        run = _run(spec, student, folder)
    if config.blocks:
        shown = (b.views[run.student_view].pixels for b in first_batches(run, config.score_batches))
        images = torch.cat([torch.tensor(pixels) for pixels in shown])
    if config.cut and score.needs_gradients:
        score_student(run, student, checkpoint, score, config.score_batches)
    timed = config.budget.latency is not None
    before = cost_of(student.backbone, student.img_size, timed)
    found: dict[float, Cuts] = {}

    def smaller(asked: PruneConfig) -> Student:
        """A pruned copy."""
        small, found[asked.amount] = prune_and_tell(student, asked, score, images, aim)
        return small

    budget = config.budget
    if any(share is not None for share in (budget.params, budget.macs, budget.latency)):
        small, config = within_budget(student, config, smaller)
    else:
        small = smaller(config) if goes else student
        if config.cut and aim is None:
            _check_something_stays(config, found[config.amount])
    sparse = None
    if config.sparsity.type is not None:
        small, sparse = sparsify(small, config.sparsity)
    after = cost_of(small.backbone, small.img_size, timed)
    return Cut(small, config, found.get(config.amount), sparse, before, after)


def _cut_detector(config: PruneConfig, checkpoint: Path) -> Cut:
    detector, timed = load_detector(checkpoint, "prune.checkpoint"), config.budget.latency is not None
    before = cost_of(detector.backbone, detector.img_size, timed)
    found: dict[float, tuple[Detector, Cuts]] = {}

    def smaller(asked: PruneConfig) -> Student:
        """The backbone of a pruned copy."""
        found[asked.amount] = prune_detector(detector, asked)
        return found[asked.amount][0].student

    if any(share is not None for share in vars(config.budget).values()):
        _, config = within_budget(detector.student, config, smaller)
    else:
        smaller(config)
        _check_something_stays(config, found[config.amount][1])
    small, cuts = found[config.amount]
    after = cost_of(small.backbone, small.img_size, timed)
    return Cut(small, config, cuts, None, before, after)


def _check_something_stays(config: PruneConfig, cuts: Cuts) -> None:
    """An amount that leaves less than one unit of every layer is a slip, not what anybody wants."""
    widest = max(cuts.sizes.values())
    if config.mode is PruneMode.amount and widest * (1 - config.amount) < 1:
        raise SpecError(
            f"{config.amount} leaves nothing: less than one of the {widest} channels of the widest layer would stay",
            where="prune.amount",
            hint=f"Take {math.floor(1000 * (1 - 1 / widest)) / 1000:g} at most; 0.5 is where most begin.",
        )


def _run(spec: Spec, student: Student, folder: Path) -> Run:
    """The run that taught ``student``: by teachers where it has heads for any, else by labels."""
    run, data = prepare(spec, command_with(teachers=bool(student.head_names)), folder)
    keep_data(run, data)
    return run
