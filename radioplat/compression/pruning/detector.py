"""Structured pruning of a detector: channels of its backbone, and of what reads the maps."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch

from radioplat.compression.pruning.groups import Readers
from radioplat.compression.pruning.prune import Aim, Cuts, cut_channels, require_plain
from radioplat.compression.pruning.scores import ChannelScore
from radioplat.errors import SpecError
from radioplat.models.detectors.base import BACKBONE, Detector
from radioplat.spec.schema.prune import PruneConfig, PrunePart


def prune_detector(detector: Detector, config: PruneConfig, aim: Aim | None = None) -> tuple[Detector, Cuts]:
    """A copy of ``detector`` with fewer channels in its backbone, whose weights are those that stay, and what went.

    The encoder and the decoder keep their widths: the projections before them lose the inputs that the maps lose.

    Args:
        detector: in fp32 with plain weights.
        aim: as :func:`radioplat.compression.pruning.prune.prune_and_tell` takes it.

    Raises:
        SpecError: the backbone cannot be pruned so, or nothing would be left.
    """
    require_plain(detector.architecture.student)
    if detector.pyramid.plain and PrunePart.width in config.cut:
        hint = "Leave width out: hidden units and heads go."
        raise SpecError("the pyramid of a plain ViT is built on its width", where="prune.parts", hint=hint)
    small = copy.deepcopy(detector).eval()
    readers = None if detector.pyramid.plain else _readers(small)
    student, cuts = cut_channels(detector.student, small.student, {}, config, ChannelScore(config), aim, readers)
    made = Detector(replace(detector.architecture, student=student.architecture))
    tensors = {name: tensor for name, tensor in small.state_dict().items() if not name.startswith(BACKBONE)}
    made.load_state_dict(tensors | {f"{BACKBONE}{name}": tensor for name, tensor in student.state_dict().items()})
    return made.eval(), cuts


def _readers(detector: Detector) -> Readers:
    """The projections of the maps to the encoder's width; those of DINO's further levels read the last map, then each
    other."""
    layers = detector.input_projections

    def read(images: torch.Tensor) -> list[torch.Tensor]:
        maps = detector.maps(images)
        said = [project(level) for project, level in zip(layers, maps, strict=False)]
        for project in layers[len(maps) :]:
            said.append(project(maps[-1] if len(said) == len(maps) else said[-1]))
        return said

    return Readers(list(layers), read)
