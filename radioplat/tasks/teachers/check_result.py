"""What a check of teachers found."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch


@dataclass
class TeacherFindings:
    """What 200 images said of one teacher.

    Attributes:
        facts: measure to value.
        flags: what looks wrong, in sentences.
        agreement: normalisation -> how well each image is told from the others when it is mirrored.
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
    """All teachers, and the page that shows them."""

    teachers: list[TeacherFindings]
    report: Path | None = None
