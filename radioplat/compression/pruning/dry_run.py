"""A cut of untrained weights: what cannot be pruned says so before data are read or teachers asked."""

from __future__ import annotations

from dataclasses import replace

import torch

from radioplat.compression.pruning.prune import prune_student
from radioplat.compression.pruning.scores import ChannelScore
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.spec.schema.prune import PruneConfig, PruneScore


def rehearse(architecture: StudentArchitecture, config: PruneConfig) -> None:
    """Prune a student of ``architecture`` by ``config``, less what needs trained weights or a search.

    Raises:
        SpecError: as the real cut will.
    """
    if not config.cut and not config.blocks:
        return
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        student = Student(architecture).fold().eval()
        size = architecture.img_size
        images = torch.randint(0, 256, (1, 3, size, size), dtype=torch.uint8)
        plain = replace(config, score=PruneScore.magnitude)
        prune_student(student, plain, ChannelScore(plain), images)
