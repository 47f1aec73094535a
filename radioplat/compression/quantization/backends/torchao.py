"""Calibration by torchao's observers (``quantize.backend: torchao``): their scales, in our quantizers."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from radioplat.common.optional_imports import needs
from radioplat.errors import SpecError
from radioplat.models.quantized.quantizer import Quantizer, in_float, quantizers

METHODS = ("minmax", "mse")


def torchao_amax(
    student: nn.Module, show: Callable[[nn.Module], None], method: str = "minmax"
) -> dict[str, torch.Tensor]:
    """What each quantizer of ``student`` should clip at, by its name: fp32, one value a scale.

    A symmetric observer of torchao stands at each quantizer, residual branches included, and sees in float what the
    quantizer will round.

    Args:
        show: sends the calibration images through a student that it is given.
        method: of :data:`METHODS`, for activations; weights always get their largest magnitude.

    Raises:
        SpecError: torchao is not installed, or lacks the method for a format.
    """
    with needs("torchao", "torchao"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchao.quantization import PerAxis, PerTensor
        from torchao.quantization.observer import AffineQuantizedMinMaxObserver, AffineQuantizedMSEObserver
        from torchao.quantization.quant_primitives import MappingType

    if method not in METHODS:
        hint = f"Take {' or '.join(METHODS)}, or backend: native."
        raise SpecError(f"torchao has no observer for {method}", where="quantize.algorithm", hint=hint)

    def observer(name: str, quantizer: Quantizer) -> nn.Module:
        """A symmetric observer of what ``quantizer`` is given."""
        row = quantizer.format.row
        by_error = method == "mse" and not name.endswith("weight_quantizer")
        if by_error and method not in row.toolkit_calibrators:
            hint = "Take quantize.algorithm: minmax, or backend: native."
            message = f"torchao has no MSE calibration for {row.name.upper()}"
            raise SpecError(message, where="quantize.algorithm", hint=hint)
        kind = AffineQuantizedMSEObserver if by_error else AffineQuantizedMinMaxObserver
        value = float if row.is_float else int
        return kind(
            MappingType.SYMMETRIC,
            getattr(torch, row.torch_type),
            PerTensor() if quantizer.axis == -1 else PerAxis(quantizer.axis),
            quant_min=value(-row.highest),
            quant_max=value(row.highest),
            eps=torch.finfo(torch.float32).tiny,
            scale_dtype=torch.float32,
        )

    found = quantizers(student)
    observers = {name: observer(name, quantizer) for name, quantizer in found.items()}
    hooks = [q.register_forward_pre_hook(_shows(observers[name])) for name, q in found.items()]
    try:
        with warnings.catch_warnings(), torch.no_grad(), in_float(student):
            warnings.simplefilter("ignore")
            show(student)
    finally:
        for hook in hooks:
            hook.remove()
    return {name: _amax(observers[name], quantizer) for name, quantizer in found.items()}


def _shows(observer: nn.Module) -> Callable[[nn.Module, tuple[Any, ...]], None]:
    def hook(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        observer(inputs[0].float().contiguous())

    return hook


def _amax(observer: Any, quantizer: Quantizer) -> torch.Tensor:
    scale = observer.calculate_qparams()[0]
    return scale.detach().float().flatten().cpu() * quantizer.format.highest
