"""The rank context of a training worker."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class RankContext:
    """Rank, world size and device of a worker; ``on_cluster``: Ray started its process, which runs nothing else."""

    rank: int
    world_size: int
    device: torch.device
    on_cluster: bool = False
