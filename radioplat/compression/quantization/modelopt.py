"""Activation ranges by NVIDIA ModelOpt's histograms (``quantize.backend: modelopt.pytorch``), in our quantizers.

Largest magnitudes, of weights and of activations, are equal to the native ones and are not measured again.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import torch
from timm.layers import Conv2dSame
from torch import nn

from radioplat.common.imports import needs
from radioplat.errors import SpecError
from radioplat.models.quantized.layers import QuantizedConv2d, QuantizedConv2dSame, QuantizedLinear
from radioplat.models.quantized.quantizer import Quantizer, quantizers
from radioplat.spec.schema.quantize import Calibrator, QuantizeConfig

BACKEND = "modelopt.pytorch"
_STRIDE = 8  # entropy tests every eighth bin as a bound: all of them took 7 seconds per tensor
_FLOAT: dict[type, type] = {QuantizedLinear: nn.Linear, QuantizedConv2d: nn.Conv2d, QuantizedConv2dSame: Conv2dSame}


@torch.no_grad()
def calibrate_by_modelopt(
    model: nn.Module, config: QuantizeConfig, run: Callable[[nn.Module], None], settled: tuple[str, ...] = ()
) -> None:
    """If ``config`` selects a histogram of ModelOpt, set the scales of the layers' inputs by it.

    A layer whose input is zero everywhere and quantizers on residual branches, which ModelOpt has no name for, keep
    their scales.

    Args:
        run: runs the calibration images through a model.
        settled: prefixes of quantizers whose scales stay.

    Raises:
        SpecError: ModelOpt is not installed, or does not quantize a layer that it should.
    """
    if config.backend != BACKEND or config.algorithm in (Calibrator.minmax, Calibrator.max):
        return
    own = quantizers(model)
    by_scale: dict[int, torch.Tensor] = {}
    for name, amax in modelopt_amax(model, run, config).items():
        if amax.max() > 0 and not name.startswith(settled):
            # A shared scale is for the largest of the tensors that it rounds.
            scale = own[name].scale
            by_scale[id(scale)] = torch.maximum(amax, by_scale.get(id(scale), amax))
            own[name].set_amax(by_scale[id(scale)].to(scale.device))


def modelopt_amax(
    model: nn.Module, run: Callable[[nn.Module], None], config: QuantizeConfig
) -> dict[str, torch.Tensor]:
    """Return the clipping magnitude of each layer's input, fp32 ``[1]`` on the CPU, by the quantizer's name.

    ``mtq.quantize`` gets a float copy and one rule per quantizer with everything else off, because its default
    configuration leaves layers out by their names (``*vision_model*``, ``output.*``, ...). Its "mse" chose 0.17 for
    values up to 2.6 (0.47.0), so :mod:`radioplat.spec.checks.tasks.quantize` refuses it.
    """
    with needs("nvidia-modelopt", BACKEND), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import modelopt.torch.quantization as mtq
        from modelopt.torch.quantization.model_calib import enable_stats_collection
        from modelopt.torch.quantization.nn import QuantModuleRegistry, TensorQuantizer
        from modelopt.torch.quantization.nn.modules.quant_conv import _QuantConv2d
    if Conv2dSame not in QuantModuleRegistry:  # TensorFlow's padding; like any convolution it multiplies `weight`
        QuantModuleRegistry.register({Conv2dSame: "timm.Conv2dSame"})(type("_QuantConv2dSame", (_QuantConv2d,), {}))
    own = {name: q for name, q in quantizers(model).items() if name.endswith(".input_quantizer")}
    rules: list[dict[str, Any]] = [{"quantizer_name": "*", "enable": False}]
    for name, quantizer in own.items():
        settings = {"num_bits": quantizer.format.row.bits, "axis": None, "calibrator": "histogram"}
        rules.append({"quantizer_name": name, "cfg": settings, "enable": True})
    options = {"percentile": config.percentile} if config.algorithm is Calibrator.percentile else {"stride": _STRIDE}
    twin = float_twin(model).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mtq.quantize(twin, {"quant_cfg": rules, "algorithm": None})
        theirs = {n: m for n, m in twin.named_modules() if isinstance(m, TensorQuantizer) and m.is_enabled}
        _require_same_places(own, theirs)
        enable_stats_collection(twin)
        run(twin)
        for quantizer in theirs.values():
            quantizer.load_calib_amax(config.algorithm.value, **options)
    return {name: quantizer.amax.detach().float().flatten().cpu() for name, quantizer in theirs.items()}


def float_twin(model: nn.Module) -> nn.Module:
    """Return a copy whose quantized layers are plain ones with the same weights and names; its other quantizers are
    off."""
    twin = copy.deepcopy(model)
    for layer in twin.modules():
        if type(layer) in _FLOAT:
            del layer.input_quantizer, layer.weight_quantizer
            layer.__class__ = _FLOAT[type(layer)]
    for quantizer in quantizers(twin).values():
        quantizer.enabled = False
    return twin


def _require_same_places(own: dict[str, Quantizer], theirs: dict[str, Any]) -> None:
    if missing := sorted(own.keys() - theirs.keys()):
        layers = sorted({name.rpartition(".")[0] for name in missing})
        raise SpecError(
            f"ModelOpt has {len(theirs)} of {len(own)} quantizers: none at {', '.join(layers[:4])}",
            where="quantize.backend",
            hint="Skip these layers, or take backend: native.",
        )
    if extra := sorted(theirs.keys() - own.keys()):
        raise SpecError(f"ModelOpt quantizes layers without a rule: {', '.join(extra[:4])}", where="quantize.backend")
