"""The result of a fork: its arms, with the hours that each took and the figures of its student."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from radioplat.evaluation.metrics.paired_knn import PairedResult

GPU, CPU = "GPU", "CPU"


@dataclass(frozen=True)
class ArmResult:
    """One finished arm.

    Attributes:
        student: its newest checkpoint; ``radioplat.load_student`` opens it.
        steps: of its training after the fork.
        loss: of its last step.
        seconds: wall time of all its starts.
        gpu_seconds, cpu_seconds: allocated to its workers, decoding and teachers, used or idle.
        figures: by name, as in a row of `evaluate.models`: ``knn``, ``fidelity/<teacher>/<kind>``.
        knn_gain: kNN accuracy beside the first arm; None for that arm, and without labels.
        same_as: an earlier arm with the same weights, bit for bit; empty if there is none.
    """

    name: str
    changes: tuple[str, ...]
    student: Path
    steps: int
    loss: float
    seconds: float
    gpu_seconds: float
    cpu_seconds: float
    figures: dict[str, float]
    knn_gain: PairedResult | None = None
    same_as: str = ""

    def hours(self, unit: str) -> float:
        """Return its GPU- or CPU-hours."""
        return (self.gpu_seconds if unit == GPU else self.cpu_seconds) / 3600


@dataclass(frozen=True)
class ForkResult:
    """A finished fork.

    Attributes:
        at: the step that all arms begin from.
        start: the checkpoint of that step.
        folder: ``<folder>/<arm>`` are the arms' results folders.
        report: a page with the arms side by side, and their curves.
        evaluation: the page of their evaluation; None without held-out images.
        start_figures: of ``start``, as of an arm; empty without held-out images, and for detectors.
    """

    at: int
    start: Path
    folder: Path
    arms: list[ArmResult]
    report: Path
    evaluation: Path | None = None
    start_figures: dict[str, float] = field(default_factory=dict)

    @property
    def unit(self) -> str:
        """Whether hours are those of GPUs; of CPUs if no arm had one."""
        return GPU if any(arm.gpu_seconds for arm in self.arms) else CPU

    def gain_per_hour(self, arm: ArmResult) -> float | None:
        """Return the kNN accuracy that an arm gained since the start, an hour of :attr:`unit`; None without labels."""
        hours = arm.hours(self.unit)
        if "knn" not in arm.figures or "knn" not in self.start_figures or not hours:
            return None
        return (arm.figures["knn"] - self.start_figures["knn"]) / hours

    def as_json(self) -> dict[str, Any]:
        """Return the content of ``results.json``."""
        arms = [
            {
                **vars(arm),
                "student": str(arm.student),
                "knn_gain": vars(arm.knn_gain) if arm.knn_gain else None,
                "hours": arm.hours(self.unit),
                "gain_per_hour": self.gain_per_hour(arm),
            }
            for arm in self.arms
        ]
        start = {"start": str(self.start), "start_figures": self.start_figures}
        return {"at": self.at, **start, "unit": f"{self.unit}-hours", "arms": arms}
