"""Build the engine of a run."""

from __future__ import annotations

from torch import nn

from radioplat.spec.schema.root import Spec
from radioplat.training.engine.deepspeed_engine import DeepSpeedEngine
from radioplat.training.engine.engine import Engine


def build_engine(module: nn.Module, spec: Spec, micro_batches: int) -> Engine:
    """Return an engine around ``module``, which is on its device; the process group must be initialized.

    Args:
        micro_batches: number of micro-batches of one optimizer step on this rank, padding included.

    Raises:
        SpecError: a parameter group is invalid (see :func:`radioplat.optim.optimizer.build_optimizer`).
    """
    return DeepSpeedEngine(module, spec, micro_batches)
