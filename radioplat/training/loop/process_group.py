"""Join the process group of a run's workers."""

from __future__ import annotations

from datetime import timedelta

from radioplat.training.engine import deepspeed_compat


def join(backend: str, timeout: timedelta = timedelta(minutes=30)) -> None:
    """Join the process group that the environment (RANK, WORLD_SIZE, MASTER_ADDR, ...) describes.

    DeepSpeed joins it for both engines: it chooses the device and works around errors of NCCL's initialization.
    """
    deepspeed_compat.init_distributed(backend, timeout)
