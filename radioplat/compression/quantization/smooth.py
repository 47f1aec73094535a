"""Scales of channels that move from a normalization into the linear layer behind it, by ModelOpt's SmoothQuant and AWQ.

A few channels of a transformer's activations can be far larger than the others, and one scale for all leaves little of
the format to the rest. SmoothQuant (Xiao et al. 2023, section 4) divides such channels and multiplies the weights that
read them; AWQ (Lin et al. 2024, section 3.2) enlarges weights that read large activations, before they are rounded.
ModelOpt multiplies the layer's input by these factors while it runs. Here they go into weight and bias of the
normalization before the layer, so that engines compute nothing more and outputs in floats stay the same. Layers that do
not directly follow a normalization (attention's output, an MLP's second layer) have no place for factors and keep
theirs at 1.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from radioplat.common.imports import needs
from radioplat.compression.quantization.modelopt import BACKEND
from radioplat.models.quantized.architecture import Quantization
from radioplat.spec.resolved.number_formats import SMOOTHING
from radioplat.spec.schema.quantize import QuantizeConfig

TOLERANCE = 1e-4  # of outputs whose normalization and layer were scaled by 2 and 1/2, relative to their largest value
_NORMS = ("LayerNorm", "RMSNorm")


@torch.no_grad()
def smooth(
    model: Any, config: QuantizeConfig, placement: Quantization, example: torch.Tensor, run: Callable[[nn.Module], None]
) -> list[str]:
    """Move factors of channels as the configuration ``backend_kwargs.quant_cfg`` of ModelOpt finds them, in place.

    Args:
        model: the student in floats, in evaluation mode.
        example: images, as ``model.feature_probe`` takes them.
        run: runs the calibration images through a model.

    Returns:
        The names of the layers that have factors; empty without such a configuration.

    Raises:
        SpecError: ModelOpt is not installed.
    """
    name = config.backend_kwargs.get("quant_cfg")
    if config.backend != BACKEND or name not in SMOOTHING:
        return []
    pairs = [pair for pair in find_norm_pairs(model, example) if pair[1] in placement.layers]
    blocks = {linear: placement.layers[linear].block for _, linear in pairs}
    factors = modelopt_factors(model, name, blocks, config.backend_kwargs, run)
    for norm, linear in pairs:
        if linear in factors:
            move(model.get_submodule(norm), model.get_submodule(linear), factors[linear])
    return [linear for _, linear in pairs if linear in factors]


@torch.no_grad()
def find_norm_pairs(model: Any, example: torch.Tensor) -> list[tuple[str, str]]:
    """Return the names of normalizations with a weight, each with the only linear layer that reads its output.

    That nothing else reads it is tried: the outputs stay what they are when both are scaled.
    """
    outputs: dict[tuple[int, int], str] = {}
    alive: list[torch.Tensor] = []  # so that no other tensor gets the same memory
    readers: dict[str, set[str]] = {}
    hooks = []
    for name, module in model.named_modules():
        if _is_norm(module):

            def note(_: nn.Module, given: tuple, output: torch.Tensor, name: str = name) -> None:
                """Remember where the output lies."""
                alive.append(output)
                outputs[output.data_ptr(), output.numel()] = name

            hooks.append(module.register_forward_hook(note))
        elif isinstance(module, nn.Linear):

            def read(_: nn.Module, given: tuple, name: str = name) -> None:
                """Note the normalization whose output it reads."""
                norm = outputs.get((given[0].data_ptr(), given[0].numel()))
                if norm is not None:
                    readers.setdefault(norm, set()).add(name)

            hooks.append(module.register_forward_pre_hook(read))
    try:
        wanted = [tensor.clone() for _, tensor in model.feature_probe(example)]
    finally:
        for hook in hooks:
            hook.remove()
    pairs = [(norm, next(iter(names))) for norm, names in readers.items() if len(names) == 1]
    return [pair for pair in pairs if _can_move(model, *pair, example, wanted)]


def move(norm: nn.Module, linear: nn.Module, factors: torch.Tensor) -> None:
    """Multiply the outputs of ``norm`` by ``factors``, fp32 ``[channels]``, and divide what reads them."""
    factors = factors.to(norm.weight.device)
    norm.weight.mul_(factors)
    if getattr(norm, "bias", None) is not None:
        norm.bias.mul_(factors)
    linear.weight.div_(factors)


def modelopt_factors(
    model: nn.Module,
    name: str,
    blocks: dict[str, int | None],
    options: dict[str, Any],
    run: Callable[[nn.Module], None],
) -> dict[str, torch.Tensor]:
    """Return the factors of the inputs of each layer, fp32 ``[channels]`` on the CPU, as ModelOpt finds them.

    Args:
        name: of ModelOpt's configuration.
        blocks: names of the layers, with the number of inputs that share a scale of 4-bit weights.
        options: ``quantize.backend_kwargs``; ``alpha`` of SmoothQuant.
    """
    with needs("nvidia-modelopt", BACKEND), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import modelopt.torch.quantization as mtq
    preset = getattr(mtq, name)
    whole = {rule["quantizer_name"]: rule for rule in preset["quant_cfg"]}
    rules: list[dict[str, Any]] = [{"quantizer_name": "*", "enable": False}]
    for layer, block in blocks.items():
        for part in ("weight_quantizer", "input_quantizer"):
            rule = copy.deepcopy(dict(whole[f"*{part}"]))
            if block and part == "weight_quantizer":
                rule["cfg"] = {**dict(rule["cfg"]), "block_sizes": {-1: block}}
            rules.append({**rule, "quantizer_name": f"{layer}.{part}"})
    algorithm = preset["algorithm"]
    if "alpha" in options:
        algorithm = {"method": algorithm, "alpha": options["alpha"]}
    twin = copy.deepcopy(model).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mtq.quantize(twin, {"quant_cfg": rules, "algorithm": algorithm}, forward_loop=run)
    scales = {layer: twin.get_submodule(layer).input_quantizer.pre_quant_scale for layer in blocks}
    return {layer: factors.detach().float().flatten().cpu() for layer, factors in scales.items() if factors is not None}


def _is_norm(module: nn.Module) -> bool:
    weight = getattr(module, "weight", None)
    return type(module).__name__.startswith(_NORMS) and isinstance(weight, nn.Parameter) and weight.ndim == 1


def _can_move(model: Any, norm: str, linear: str, example: torch.Tensor, wanted: list[torch.Tensor]) -> bool:
    """Return whether outputs stay the same when every second channel is doubled and its weights halved."""
    first, second = model.get_submodule(norm), model.get_submodule(linear)
    factors = torch.ones_like(first.weight)
    if len(factors) != second.in_features:
        return False
    factors[::2] = 2.0  # a power of two: dividing by it restores every bit
    move(first, second, factors)
    ours = [tensor for _, tensor in model.feature_probe(example)]
    move(first, second, 1 / factors)
    return all((a - b).abs().max() <= TOLERANCE * b.abs().max() for a, b in zip(ours, wanted, strict=True))
