"""What an evaluation found: the figures of every metric, and how they were measured."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from radioplat.evaluation.masks.segmentation import Answers, ChangeResult, SegmentationResult
from radioplat.evaluation.metrics.correspondence import CorrespondenceResult
from radioplat.evaluation.metrics.fidelity import FidelityResult
from radioplat.evaluation.metrics.knn import KnnResult
from radioplat.evaluation.metrics.linear_probe import LinearProbeResult
from radioplat.evaluation.metrics.resolution_agreement import Agreement
from radioplat.evaluation.metrics.zero_shot import ZeroShotResult


@dataclass
class Findings:
    """What was measured, each by model.

    Attributes:
        fidelity: by student (a resolution of it is ``student at 448``), teacher and kind.
        accuracy, accuracy_top5: of own classifiers, by those models that have one.
        agreement: of the trained student's maps at its resolutions: ``backbone``, and each teacher's name for its head.
        likeness: of backbone features to those of the first of ``evaluate.models``, by model and kind.
        absent: metrics that were not to be had, a line each with what to give; and what was left out of others.
        answers: of decoders about the first held-out images, by section (``segmentation``, ``change``).
        shown: images of the pictures, uint8 ``[N, 3, H, W]``.
        maps: spatial features of the shown images, ``[N, h, w, D]``, by model; a student's in a teacher's space is
            ``<student>/<teacher>``.
    """

    knn: dict[str, KnnResult] = field(default_factory=dict)
    fidelity: dict[str, dict[str, dict[str, FidelityResult]]] = field(default_factory=dict)
    accuracy: dict[str, float] = field(default_factory=dict)
    accuracy_top5: dict[str, float] = field(default_factory=dict)
    linear: dict[str, LinearProbeResult] = field(default_factory=dict)
    zero_shot: dict[str, ZeroShotResult] = field(default_factory=dict)
    correspondence: dict[str, CorrespondenceResult] = field(default_factory=dict)
    segmentation: dict[str, SegmentationResult] = field(default_factory=dict)
    change: dict[str, ChangeResult] = field(default_factory=dict)
    agreement: dict[str, list[Agreement]] = field(default_factory=dict)
    likeness: dict[str, dict[str, FidelityResult]] = field(default_factory=dict)
    absent: list[str] = field(default_factory=list)
    answers: dict[str, Answers] = field(default_factory=dict)
    shown: np.ndarray | None = None
    maps: dict[str, torch.Tensor] = field(default_factory=dict)
