"""Spec section ``low_rank``: replace weight matrices by products of two narrower ones."""

from __future__ import annotations

from dataclasses import dataclass, field

from radioplat.spec.ranges import number
from radioplat.spec.schema.retrain import RetrainConfig


@dataclass
class LowRankConfig:
    """(+) Spec section ``low_rank``; exactly one of ``energy``, ``rank`` and ``ratio`` sets the rank."""

    checkpoint: str | None = None  # checkpoint to read; default: results_dir/distill's (or train's) latest
    results_dir: str | None = None  # folder of this task; default: results_dir/low_rank
    energy: float | None = number(None, above=0, below=1)  # minimum share of the squared singular values to keep
    rank: int | None = number(None, at_least=1)  # number of singular values to keep
    ratio: float | None = number(None, above=0, below=1)  # maximum share of a layer's weights to keep
    include: list[str] = field(default_factory=lambda: ["*"])  # name patterns of backbone layers
    exclude: list[str] = field(default_factory=list)  # name patterns of layers that stay whole
    retrain: RetrainConfig = field(default_factory=RetrainConfig)  # training afterwards
