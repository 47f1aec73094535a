"""Calibration by NVIDIA ModelOpt (``quantize.backend: modelopt.pytorch``): its statistics, in our quantizers."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from timm.layers import Conv2dSame
from torch import nn

from radioplat.common.optional_imports import needs
from radioplat.compression.quantization.backends.float_twin import float_twin
from radioplat.errors import SpecError
from radioplat.models.quantized.quantizer import Quantizer, quantizers

# What its histograms are asked for. Its "mse" chose 0.17 where values went to 2.6 (0.47.0): it is left out.
HISTOGRAMS = ("percentile", "entropy")
_STRIDE = 8  # of the bins that entropy tries as bounds: at every bin a tensor took 7 seconds


def modelopt_amax(
    student: nn.Module, show: Callable[[nn.Module], None], method: str = "minmax", percentile: float = 99.99
) -> dict[str, torch.Tensor]:
    """What each quantizer of a layer of ``student`` should clip at, by the quantizer's name: fp32, one value a scale.

    ``mtq.quantize`` gets a float copy and one rule for each quantizer, with everything else off: its own default
    configuration leaves layers out by their names (``*vision_model*``, ``output.*``, ...). Weights always get their
    largest magnitude. Quantizers that belong to no layer (on residual branches) are not in the answer.

    Args:
        show: sends the calibration images through a student that it is given.
        method: ``minmax``, or one of :data:`HISTOGRAMS`, for activations.

    Raises:
        SpecError: ModelOpt is not installed, lacks the method for a format, or quantizes other places than asked for.
    """
    with needs("nvidia-modelopt", "modelopt.pytorch"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import modelopt.torch.quantization as mtq
        from modelopt.torch.quantization.model_calib import enable_stats_collection
        from modelopt.torch.quantization.nn import QuantModuleRegistry, TensorQuantizer
        from modelopt.torch.quantization.nn.modules.quant_conv import _QuantConv2d
    if method not in ("minmax", *HISTOGRAMS):
        hint = f"Take minmax, {' or '.join(HISTOGRAMS)}, or backend: native."
        raise SpecError(f"ModelOpt is not trusted with {method}", where="quantize.algorithm", hint=hint)
    if Conv2dSame not in QuantModuleRegistry:  # of TensorFlow's padding; like any convolution it multiplies `weight`
        QuantModuleRegistry.register({Conv2dSame: "timm.Conv2dSame"})(_same_padding(_QuantConv2d))
    own = _of_layers(student)
    rules: list[dict[str, Any]] = [{"quantizer_name": "*", "enable": False}]
    for name, quantizer in own.items():
        weight = name.endswith("weight_quantizer")
        histogram = method in HISTOGRAMS and not weight
        row = quantizer.format.row
        if histogram and method not in row.toolkit_calibrators:
            hint = "Take quantize.algorithm: minmax, or backend: native."
            message = f"ModelOpt has no {method} calibration for {row.name.upper()}"
            raise SpecError(message, where="quantize.algorithm", hint=hint)
        config = {
            "num_bits": (row.exponent_bits, row.bits - 1 - row.exponent_bits) if row.is_float else row.bits,
            "axis": None if quantizer.axis == -1 else quantizer.axis,
            "calibrator": "histogram" if histogram else "max",
        }
        rules.append({"quantizer_name": name, "cfg": config, "enable": True})
    twin = float_twin(student).eval()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        mtq.quantize(twin, {"quant_cfg": rules, "algorithm": None})
        theirs = {n: m for n, m in twin.named_modules() if isinstance(m, TensorQuantizer) and m.is_enabled}
        _same_places(own, theirs)
        enable_stats_collection(twin)
        show(twin)
        found = {}
        for name, quantizer in theirs.items():
            if method == "minmax" or name.endswith("weight_quantizer"):
                quantizer.load_calib_amax()
            else:
                more = {"percentile": percentile} if method == "percentile" else {"stride": _STRIDE}
                quantizer.load_calib_amax(method, **more)
            found[name] = quantizer.amax.detach().float().flatten().cpu()
    return found


def _same_padding(base: type) -> type:
    return type("_QuantConv2dSame", (base,), {})


def _of_layers(student: nn.Module) -> dict[str, Quantizer]:
    return {n: q for n, q in quantizers(student).items() if n.endswith((".input_quantizer", ".weight_quantizer"))}


def _same_places(own: dict[str, Quantizer], theirs: dict[str, Any]) -> None:
    if missing := sorted(own.keys() - theirs.keys()):
        layers = sorted({name.rpartition(".")[0] for name in missing})
        raise SpecError(
            f"ModelOpt puts {len(theirs)} quantizers where {len(own)} are asked for: none at {', '.join(layers[:4])}",
            where="quantize.backend",
            hint="Skip these layers, or take backend: native.",
        )
    if extra := sorted(theirs.keys() - own.keys()):
        raise SpecError(f"ModelOpt quantizes what no rule asks for: {', '.join(extra[:4])}", where="quantize.backend")
