"""The place of a training worker among the others."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class RankContext:
    """Rank, world size and device of a worker; ``on_cluster``: its process is started by Ray and runs nothing else."""

    rank: int
    world_size: int
    device: torch.device
    on_cluster: bool = False
