"""Calibration: scales of a student's quantizers from its weights and from images."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import torch
from torch import nn

from radioplat.compression.quantization.calibrators import entropy_amax, mse_amax, mse_weight_amax, percentile_amax
from radioplat.compression.quantization.histogram import Magnitudes
from radioplat.errors import WeightsError
from radioplat.models.quantized.fake_quantize import NumberFormat
from radioplat.models.quantized.quantizer import Quantizer, in_float, quantizers
from radioplat.spec.schema.quantize import Calibrator, QuantizeConfig

WEIGHT = "weight_quantizer"


@torch.no_grad()
def calibrate(
    student: nn.Module, config: QuantizeConfig, run: Callable[[], None], settled: tuple[str, ...] = ()
) -> list[str]:
    """Set the scale of every quantizer of ``student``; return the names of those whose input was zero everywhere.

    Args:
        run: runs the calibration images through the student, the same each time; nothing is rounded meanwhile.
        settled: prefixes of quantizers that have their scales; these round as usual.

    Raises:
        WeightsError: a layer's input is not finite.
    """
    new = {n: q for n, q in quantizers(student).items() if not n.startswith(settled)}
    _calibrate_weights(student, new, config)
    inputs = {n: q for n, q in new.items() if not n.endswith(WEIGHT)}
    if not inputs:
        return []
    by_scale = {id(quantizer.scale): Magnitudes() for quantizer in inputs.values()}
    # A shared scale is for the values of all tensors that it rounds.
    magnitudes = {name: by_scale[id(quantizer.scale)] for name, quantizer in inputs.items()}

    def run_with(update: Callable[[Magnitudes, torch.Tensor], None]) -> None:
        """Run the images; call ``update`` with each quantizer's magnitudes and input."""
        with contextlib.ExitStack() as hooks:
            for name, quantizer in inputs.items():
                hook = quantizer.register_forward_pre_hook(lambda _, args, name=name: update(magnitudes[name], args[0]))
                hooks.callback(hook.remove)
            run()

    with in_float(*new.values()):
        run_with(Magnitudes.update_amax)
        if infinite := [name for name, each in magnitudes.items() if not each.finite]:
            hint = "Train in bf16 or fp32, or calibrate on other images."
            raise WeightsError(f"the input of {infinite[0]} is not finite", where="quantize.checkpoint", hint=hint)
        if config.algorithm not in (Calibrator.minmax, Calibrator.max):
            run_with(Magnitudes.update_counts)
    for name, quantizer in inputs.items():
        amax = amax_of(magnitudes[name], quantizer.format, config)
        quantizer.set_amax(torch.tensor([amax], device=quantizer.scale.device))
    return [name for name, each in magnitudes.items() if each.amax == 0]


def _calibrate_weights(student: nn.Module, new: dict[str, Quantizer], config: QuantizeConfig) -> None:
    """Set the scales of weight quantizers: by the largest magnitudes, or with ``mse`` by the least squared error."""
    for name, quantizer in new.items():
        if name.endswith(WEIGHT):
            # Row by row of the values that share a scale: all of them, a channel's, or a block's.
            rows = student.get_submodule(name.rpartition(".")[0]).weight.detach().reshape(quantizer.scale.numel(), -1)
            least_error = config.algorithm is Calibrator.mse
            quantizer.set_amax(mse_weight_amax(rows, quantizer.format) if least_error else rows.abs().amax(1))


def amax_of(magnitudes: Magnitudes, format: NumberFormat, config: QuantizeConfig) -> float:
    """Return the end of the range of a tensor with these ``magnitudes``, by the algorithm of ``config``."""
    if magnitudes.amax == 0 or config.algorithm in (Calibrator.minmax, Calibrator.max):
        return magnitudes.amax
    if config.algorithm is Calibrator.percentile:
        return percentile_amax(magnitudes, config.percentile)
    find = entropy_amax if config.algorithm is Calibrator.entropy else mse_amax
    return find(magnitudes, format)
