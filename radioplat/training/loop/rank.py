"""Where a worker sits."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Seat:
    """Where a worker sits; ``on_cluster``: in a process of Ray's, which is its own."""

    rank: int
    world_size: int
    device: torch.device
    on_cluster: bool = False
