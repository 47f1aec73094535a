"""Prune a student or detector once, by its weights and the data of its run."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from radioplat.compression.cost import Cost, cost_of
from radioplat.compression.pruning.batchnorm import has_statistics, reestimate_batchnorm
from radioplat.compression.pruning.budget import within_budget
from radioplat.compression.pruning.prune import Aim, Cuts, prune_model
from radioplat.compression.pruning.reconstruct import Reconstructed, reconstruct
from radioplat.compression.pruning.scores import ChannelScore
from radioplat.compression.pruning.sparsify import Sparsified, sparsify
from radioplat.data.loading.sample_images import sample_images
from radioplat.design.run import Run, keep_data
from radioplat.errors import SpecError
from radioplat.exporting.engines.time_model import engine_seconds
from radioplat.launch.preflight.steps import prepare
from radioplat.models.modifiers.fuse_branches import PRUNED_WITH_THEM, branch_notes, count_convolutions, fusion_notes
from radioplat.models.student.student import Student
from radioplat.models.vision_model import VisionModel, open_model
from radioplat.spec.checks.tasks.training_task import command_with
from radioplat.spec.schema.prune import PruneConfig, PruneMode
from radioplat.spec.schema.root import Spec
from radioplat.tasks.prune.score_pass import score_student

_BATCH = 64  # images that are normalised together when BatchNorm's statistics are estimated


@dataclass(frozen=True)
class Cut:
    """Result of one pruning.

    Attributes:
        config: the settings used; with a budget, ``amount`` is the one that keeps it.
        cuts: the removed places; None if neither channels nor blocks were to be removed.
        sparse: the weights that were set to zero; None if none were to be.
        before, after: cost of the backbone; zeros count like other weights.
        batchnorm_images: number of images that BatchNorm's statistics were estimated from.
        reconstructed: blocks whose last layers were fitted again, and those that could not be.
        notes: whether the branches of its blocks were fused, one sentence; none if it has none.
    """

    student: VisionModel
    config: PruneConfig
    cuts: Cuts | None
    sparse: Sparsified | None
    before: Cost
    after: Cost
    batchnorm_images: int = 0
    reconstructed: tuple[Reconstructed, ...] = ()
    notes: tuple[str, ...] = ()


def cut(spec: Spec, config: PruneConfig, checkpoint: Path, folder: Path, aim: Aim | None = None) -> Cut:
    """Prune the student or detector of ``checkpoint`` once.

    Args:
        config: used in place of ``spec.prune``.
        folder: has the index of the data for scores.
        aim: the target of a round.

    Raises:
        SpecError: the backbone cannot be pruned this way.
        WeightsError: the checkpoint cannot be read.
    """
    model, score = open_model(checkpoint, "prune.checkpoint"), ChannelScore(config, spec.train.seed)
    notes = fuse_unless_trained(model, config, score)
    images = None
    if config.blocks:  # refused, like gradients, for other models than students
        images = _images(spec, model, config.score_batches * spec.dataset.batch_size)
    if config.cut and score.needs_gradients:
        assert isinstance(model, Student)
        score_student(_run(spec, model, folder), model, checkpoint, score, config.score_batches)
    before = _cost(spec, config, model)
    cuts: dict[float, Cuts] = {}

    def smaller(config: PruneConfig) -> VisionModel:
        small, cuts[config.amount] = prune_model(model, config, score, images, aim)
        return small

    small: Any = model
    if has_budget(config):
        small, config = within_budget(model, config, smaller, lambda one: _cost(spec, config, one))
    elif config.cut or config.blocks:
        small = smaller(config)
        if config.cut and aim is None:
            check_something_stays(config, cuts[config.amount])
    blocks: tuple[Reconstructed, ...] = ()
    if config.reconstruction_images and small is not model:  # refused for other models than students
        images = _images(spec, model, config.reconstruction_images)
        blocks = tuple(reconstruct(model, small, cuts[config.amount].kept, images))
    # Fitted blocks give what the blocks behind them got before, and so their statistics still hold.
    estimated_from = _reestimate(spec, config, small) if small is not model and not blocks else 0
    sparse = None
    if config.sparsity.type is not None:
        small, sparse = sparsify(small, config.sparsity)
    after = _cost(spec, config, small)
    return Cut(small, config, cuts.get(config.amount), sparse, before, after, estimated_from, blocks, tuple(notes))


def fuse_unless_trained(model: VisionModel, config: PruneConfig, score: ChannelScore) -> list[str]:
    """Fuse the branches of the backbone, in place, unless gradients of what was trained are needed; return a note."""
    if score.needs_gradients:
        why = f"prune.score={config.score.value} needs gradients, of the parameters that the run trained"
        return branch_notes(model, why)
    before = count_convolutions(model.backbone)
    model.fuse_branches()
    after = count_convolutions(model.backbone)
    return fusion_notes(before, after) or branch_notes(model, PRUNED_WITH_THEM)


def _cost(spec: Spec, config: PruneConfig, model: VisionModel) -> Cost:
    """Return the cost of a model; with a budget of latency also that of its engine."""
    size = model.architecture.img_size
    cost = cost_of(model.backbone, size)
    if config.budget.latency is None:
        return cost
    return replace(cost, latency=engine_seconds(model, size, spec.gen_trt_engine.backend))


def _reestimate(spec: Spec, config: PruneConfig, small: VisionModel) -> int:
    """Estimate BatchNorm's statistics again; return the number of images, 0 if there is nothing to do."""
    train = spec.dataset.train_dataset
    if not isinstance(small, Student) or not has_statistics(small) or not config.batchnorm_images:
        return 0
    if not (train.tar_data_sources or train.images_dir):
        return 0
    images = _images(spec, small, config.batchnorm_images)
    reestimate_batchnorm(small, images, _BATCH)
    return len(images)


def _images(spec: Spec, model: VisionModel, count: int) -> torch.Tensor:
    """Return training images at the model's size, uint8 ``[N, 3, H, W]``."""
    size = model.architecture.img_size
    return torch.from_numpy(sample_images(spec, {size}, count)[size])


def has_budget(config: PruneConfig) -> bool:
    """Return whether a budget sets the amount."""
    return any(share is not None for share in vars(config.budget).values())


def check_something_stays(config: PruneConfig, cuts: Cuts) -> None:
    """Refuse an amount that would leave less than one unit of every layer.

    Raises:
        SpecError: ``prune.amount`` is too large.
    """
    widest = max(cuts.sizes.values())
    if config.mode is PruneMode.amount and widest * (1 - config.amount) < 1:
        raise SpecError(
            f"{config.amount} leaves less than one of the {widest} channels of the widest layer",
            where="prune.amount",
            hint=f"Take {math.floor(1000 * (1 - 1 / widest)) / 1000:g} at most; 0.5 is a usual start.",
        )


def _run(spec: Spec, student: Student, folder: Path) -> Run:
    """Prepare a run like the one that trained ``student``: with teachers if it has heads, else on labels."""
    run, data = prepare(spec, command_with(teachers=bool(student.head_names)), folder)
    keep_data(run, data)
    return run
