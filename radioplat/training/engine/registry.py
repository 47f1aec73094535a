"""The engines by name (``train.engine``)."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from radioplat.spec.schema.root import Spec
from radioplat.spec.schema.train import EngineName
from radioplat.training.engine.ddp_engine import DdpEngine
from radioplat.training.engine.deepspeed_engine import DeepSpeedEngine
from radioplat.training.engine.engine import Engine

ENGINES: dict[EngineName, Callable[[nn.Module, Spec, int], Engine]] = {
    EngineName.deepspeed: DeepSpeedEngine,
    EngineName.ddp: DdpEngine,
}


def build_engine(module: nn.Module, spec: Spec, micro_batches: int) -> Engine:
    """Return the engine that the spec names, around ``module``; the process group must be initialized.

    Args:
        module: on the device that it is trained on.
        micro_batches: number of micro-batches of one optimizer step on this rank, padding included.

    Raises:
        SpecError: a parameter group is invalid (see :func:`radioplat.optim.optimizer.build_optimizer`).
    """
    return ENGINES[spec.train.engine](module, spec, micro_batches)
