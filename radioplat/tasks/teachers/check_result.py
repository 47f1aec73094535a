"""Result of a check of teachers."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch


@dataclass
class TeacherFindings:
    """Result for one teacher, from 200 images.

    Attributes:
        facts: value by measure.
        flags: problems, in sentences.
        agreement: by normalisation, how well each image is distinguished from the others when it is mirrored.
        shown, maps: images uint8 ``[N, 3, H, W]`` and their features ``[N, h, w, D]``, for the pictures.
    """

    name: str
    needs: str
    facts: dict[str, float] = field(default_factory=dict)
    flags: list[str] = field(default_factory=list)
    agreement: dict[str, float] = field(default_factory=dict)
    shown: np.ndarray | None = None
    maps: torch.Tensor | None = None


@dataclass
class CheckResult:
    """Results of all teachers, and the path of the page."""

    teachers: list[TeacherFindings]
    report: Path | None = None
