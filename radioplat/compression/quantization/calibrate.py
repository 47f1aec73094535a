"""The ranges of a quantized student, from its weights and from images."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from radioplat.compression.quantization.entropy import entropy_amax
from radioplat.compression.quantization.histogram import Magnitudes
from radioplat.compression.quantization.least_squares import mse_amax, mse_weight_amax
from radioplat.compression.quantization.percentile import percentile_amax
from radioplat.errors import WeightsError
from radioplat.models.quantized.quantizer import Quantizer, in_float, quantizers
from radioplat.spec.schema.quantize import Calibrator, QuantizeConfig

WEIGHT = "weight_quantizer"


@torch.no_grad()
def calibrate(
    student: nn.Module, asked: QuantizeConfig, run: Callable[[], None], kept: tuple[str, ...] = ()
) -> list[str]:
    """Give every quantizer of ``student`` its scale, measured while nothing is rounded; names of those that saw nothing
    but zeros.

    Args:
        run: sends the calibration images through the student, the same each time.
        kept: how the names of quantizers begin that have their scale already; these round meanwhile.

    Raises:
        WeightsError: a layer's input is not finite.
    """
    new = {n: q for n, q in quantizers(student).items() if not n.startswith(kept)}
    calibrate_weights(student, new, asked)
    found = {n: q for n, q in new.items() if not n.endswith(WEIGHT)}
    if not found:
        return []
    seen = {name: Magnitudes() for name in found}
    with in_float(*new.values()):
        with _watching(found, {n: m.look for n, m in seen.items()}):
            run()
        for name, magnitudes in seen.items():
            if not magnitudes.finite:
                hint = "Train in bf16 or fp32, or calibrate on other images."
                raise WeightsError(f"what {name} takes is not finite", where="quantize.checkpoint", hint=hint)
        if asked.algorithm not in (Calibrator.minmax, Calibrator.max):
            with _watching(found, {n: m.count for n, m in seen.items()}):
                run()
    for name, quantizer in found.items():
        quantizer.set_amax(torch.tensor([_amax(seen[name], quantizer, asked)], device=quantizer.scale.device))
    return [name for name, magnitudes in seen.items() if magnitudes.amax == 0]


def calibrate_weights(student: nn.Module, found: dict[str, Quantizer], asked: QuantizeConfig) -> None:
    """Give the weight quantizers in ``found`` scales: of the largest magnitudes, or with ``mse`` what loses least."""
    for name, quantizer in found.items():
        if name.endswith(WEIGHT):
            weight = student.get_submodule(name.rpartition(".")[0]).weight
            per_channel = quantizer.axis != -1
            if asked.algorithm is Calibrator.mse:
                amax = mse_weight_amax(weight, quantizer.format, per_channel)
            else:
                amax = weight.detach().abs().flatten(1).amax(1) if per_channel else weight.detach().abs().max()
            quantizer.set_amax(amax)


def _amax(seen: Magnitudes, quantizer: Quantizer, asked: QuantizeConfig) -> float:
    if seen.amax == 0 or asked.algorithm in (Calibrator.minmax, Calibrator.max):
        return seen.amax
    if asked.algorithm is Calibrator.percentile:
        return percentile_amax(seen, asked.percentile)
    find = entropy_amax if asked.algorithm is Calibrator.entropy else mse_amax
    return find(seen, quantizer.format)


@contextmanager
def _watching(found: dict[str, Quantizer], takers: dict[str, Callable[[torch.Tensor], None]]) -> Iterator[None]:
    """Show each quantizer's input to its taker meanwhile."""
    handles = [
        quantizer.register_forward_pre_hook(lambda _, args, take=takers[name]: take(args[0]))
        for name, quantizer in found.items()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
