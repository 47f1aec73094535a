"""The variants of ``benchmarks.recipe``, its runs, and what one measures. Needs no torch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

SIZE, OTHER = 96, 192  # pixels: of training; twice as many, which no student has seen


def _losses(maps: str, summary: str, targets: str) -> list[str]:
    """Overrides of the quickstart's spec: as there, lite0 teaches a summary and a map, lite2 a map."""
    return [
        f"distill.target_norm.type={targets}",
        *(f"distill.teacher[{i}].{field}" for i in (0, 1) for field in ("mode=spatial", f"loss_type={maps}")),
        f"distill.teacher[0].extra_losses=[{{type: {summary}, kind: summary}}]",
    ]


# `angle` looks at raw summaries, whatever the targets.
_RADIO = _losses("MSE", "angle", "phi_s")

VARIANTS: dict[str, list[str]] = {
    "mse": _losses("MSE", "MSE", "none"),
    "phi_s": _losses("MSE", "MSE", "phi_s"),
    "balanced": _losses("BALANCED", "BALANCED", "none"),
    "angle": _losses("MSE", "angle", "none"),
    "radio": _RADIO,
    # A table of the training grid's own size, as a plain ViT has: cells that training never tells apart would be noise
    # at the larger size.
    "radio_without_cpe": [*_RADIO, "model.backbone.cpe=false", f"model.backbone.cpe_max_size={SIZE}"],
    "radio_without_registers": [*_RADIO, "model.backbone.cpe_num_registers=0"],
}
WITH_UNTRAINED = "mse"  # its evaluations have the untrained student beside it; that of the four after it is the same


@dataclass(frozen=True)
class Job:
    """One student: a variant and a seed, trained for ``steps`` steps below ``folder``."""

    variant: str
    seed: int
    steps: int
    folder: Path

    @property
    def home(self) -> Path:
        """Its results folder. Another number of steps is another schedule, so another folder."""
        return self.folder / f"{self.steps}_steps" / self.variant / f"seed_{self.seed}"


@dataclass(frozen=True)
class Figures:
    """What one run measured on held-out images.

    Attributes:
        trained, untrained: measure -> value; measures are ``fidelity_<teacher>_<kind>_<size>`` and ``knn_<size>``. Of
            the untrained student there is nothing at the other size, and only :data:`WITH_UNTRAINED` has it.
        teachers: ``knn`` of each teacher, by name.
        cpu_s: processor seconds that it took, of all threads; a run that went on counts what it did last.
        wall_s: seconds.
    """

    trained: dict[str, float]
    untrained: dict[str, float]
    teachers: dict[str, float]
    cpu_s: float
    wall_s: float


def finished(job: Job) -> Figures | None:
    """What the run measured, if an earlier call came to its end."""
    try:
        return Figures(**json.loads((job.home / "figures.json").read_text()))
    except FileNotFoundError:
        return None
