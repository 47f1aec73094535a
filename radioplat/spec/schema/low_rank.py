"""Spec section ``low_rank``: matrices as products of two narrower ones."""

from __future__ import annotations

from dataclasses import dataclass, field

from radioplat.spec.ranges import number
from radioplat.spec.schema.retrain import RetrainConfig


@dataclass
class LowRankConfig:
    """(+) Spec section ``low_rank``; one of ``energy``, ``rank`` and ``ratio`` says how narrow."""

    checkpoint: str | None = None  # default: results_dir/distill's (or train's) latest
    results_dir: str | None = None
    energy: float | None = number(None, above=0, below=1)  # share of the squared singular values that stays at least
    rank: int | None = number(None, at_least=1)  # singular values that stay
    ratio: float | None = number(None, above=0, below=1)  # share of a layer's weights that stays at most
    include: list[str] = field(default_factory=lambda: ["*"])  # patterns of the backbone's layers
    exclude: list[str] = field(default_factory=list)
    retrain: RetrainConfig = field(default_factory=RetrainConfig)
