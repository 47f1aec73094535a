"""Ranges that another toolkit measured, in our own quantizers: every backend leaves the same kind of checkpoint."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from radioplat.models.quantized.quantizer import quantizers
from radioplat.spec.schema.quantize import Calibrator, QuantizeConfig


def borrow_scales(
    student: nn.Module, asked: QuantizeConfig, show: Callable[[nn.Module], None], kept: tuple[str, ...] = ()
) -> None:
    """Replace the scales of ``student`` by those that ``quantize.backend`` finds; the native one keeps them.

    A quantizer that the toolkit does not know, and one that saw zeros alone, keeps the scale it has.

    Args:
        show: sends the calibration images through a student that it is given.
        kept: how the names of quantizers begin that have their scale already.

    Raises:
        SpecError: the toolkit is not installed, or cannot do what is asked.
    """
    method = "minmax" if asked.algorithm is Calibrator.max else asked.algorithm.value
    if asked.backend == "modelopt.pytorch":
        from radioplat.compression.quantization.backends.modelopt import modelopt_amax

        found = modelopt_amax(student, show, method, asked.percentile)
    elif asked.backend == "torchao":
        from radioplat.compression.quantization.backends.torchao import torchao_amax

        found = torchao_amax(student, show, method)
    else:
        return
    own = quantizers(student)
    for name, amax in found.items():
        if amax.max() > 0 and not name.startswith(kept):
            own[name].set_amax(amax.to(own[name].scale.device))
