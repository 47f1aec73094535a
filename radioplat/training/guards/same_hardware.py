"""Warn where ``train.reduction: exact`` cannot give equal bits: other hardware, another torch, other threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from radioplat.common import collectives
from radioplat.common.cpu_threads import cpu_name
from radioplat.training.hooks.step_hook import StepHook

_KEY = "kind"
_UNITS = ("amx_bf16", "avx512_bf16", "avx512f", "avx2")


class SameHardware(StepHook):
    """Compare the hardware of all workers, and with that of the checkpoint which the run continues.

    Kernels are chosen by the hardware and sum in different orders. A checkpoint of a run with fast sums has no record.

    Args:
        warn: called on rank 0 with a message for the user.
    """

    name = "hardware"

    def __init__(self, device: torch.device, warn: Callable[[str], None]) -> None:
        self._kinds = sorted(set(collectives.gather_objects(kind_of(device))))
        self._warn = warn if collectives.is_first() else lambda message: None
        if len(self._kinds) > 1:
            self._warn(f"workers differ, so bits may depend on which computes what: {'; '.join(self._kinds)}")

    def state_dict(self) -> dict[str, Any]:
        """Return the kind of hardware."""
        return {_KEY: "; ".join(self._kinds)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Warn if the checkpoint was made on another kind."""
        before, now = state.get(_KEY, ""), "; ".join(self._kinds)
        if before != now:
            self._warn(f"this run began on another kind of hardware, so bits may differ: {before}; now: {now}")


def kind_of(device: torch.device) -> str:
    """Return what determines the arithmetic of this process: version of torch, GPU or CPU, and threads of a CPU."""
    if device.type == "cuda":
        return f"torch {torch.__version__}, {torch.cuda.get_device_name(device)}"
    return f"torch {torch.__version__}, {cpu_name(_UNITS)}, {torch.get_num_threads()} thread(s)"
