"""The engines by name (``train.engine``)."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from radioplat.spec.resolved.reduction import is_exact
from radioplat.spec.schema.root import Spec
from radioplat.spec.schema.train import EngineName
from radioplat.training.engine.ddp_engine import DdpEngine
from radioplat.training.engine.deepspeed_engine import DeepSpeedEngine
from radioplat.training.engine.engine import Engine
from radioplat.training.engine.exact_deepspeed import ExactDeepSpeedEngine

# By name, and whether sums are exact.
ENGINES: dict[tuple[EngineName, bool], Callable[[nn.Module, Spec, int], Engine]] = {
    (EngineName.deepspeed, False): DeepSpeedEngine,
    (EngineName.deepspeed, True): ExactDeepSpeedEngine,
    (EngineName.ddp, False): DdpEngine,
    (EngineName.ddp, True): DdpEngine,
}


def build_engine(module: nn.Module, spec: Spec, micro_batches: int) -> Engine:
    """Return the engine that the spec names, around ``module``; the process group must be initialized.

    Args:
        module: on the device that it is trained on.
        micro_batches: number of micro-batches of one optimizer step on this rank, padding included.

    Raises:
        SpecError: a parameter group is invalid (see :func:`radioplat.optim.optimizer.build_optimizer`).
    """
    return ENGINES[spec.train.engine, is_exact(spec.train)](module, spec, micro_batches)
