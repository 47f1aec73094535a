"""Placement of quantizers, by the rules of the spec and so that TensorRT can fuse INT8 and FP8 kernels.

Quantized are weights (per output channel), the input of each convolution and linear layer (so nothing between a
convolution, its bias and its ReLU), and the identity branch of blocks whose addition is fused into a convolution.
Normalization layers, attention's matrix products and the last layers of regressions and classifications stay float.

In a detector these also stay float: the last layers of its class and box heads, the layers that compute sampling
offsets of deformable attention (an offset of one pixel is small compared with their range), and the layer that embeds
box coordinates for the decoder.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Sequence

from torch import nn

from radioplat.errors import Problem, SpecError
from radioplat.models.quantized.architecture import NOT_CALLED, LayerFormats, Quantization
from radioplat.models.quantized.layers import can_be_quantized
from radioplat.models.quantized.residual_quantizer import has_identity_branch
from radioplat.models.vision_model import VisionModel
from radioplat.spec.resolved.number_formats import SPELLINGS, formats_of, has_blocks
from radioplat.spec.schema.quantize import BLOCK_SIZES, QuantizeConfig

KINDS = (nn.Linear, nn.modules.conv._ConvNd, nn.Bilinear)


def place(student: VisionModel, config: QuantizeConfig, used: set[str]) -> Quantization:
    """Return the layers of ``student`` to quantize, and the reasons why others stay float.

    Args:
        student: with BatchNorms folded. Parts that are quantized already (a detector's backbone may be) are skipped.
        used: names of the layers that are called for an image; the weights of others are read without a call.

    Raises:
        SpecError: a pattern matches no layer, or nothing would be quantized.
    """
    if problems := list(_pattern_problems(student, config)):
        raise SpecError(*problems)
    layers: dict[str, LayerFormats] = {}
    skipped: dict[str, str] = {}
    last = student.float_layers()
    settled = tuple(prefix for prefix in student.architecture.quantizations if prefix)
    for name, layer in student.named_modules():
        if not isinstance(layer, KINDS) or name.startswith(settled):
            continue
        rule = next((r for r in reversed(config.layers) if _matches(student, name, r.module_name)), None)
        weights, activations = formats_of(config, rule)
        pattern = next((p for p in config.skip_names if _matches(student, name, p)), None)
        if pattern is not None:
            skipped[name] = f"quantize.skip_names has {pattern!r}"
        elif weights is None:
            skipped[name] = f"rule {rule.module_name!r} sets native" if rule else "no rule of quantize.layers matches"
        elif name in last and not (rule is not None and rule.module_name in _pattern_names(student, name)):
            skipped[name] = last[name]
        elif name.startswith("heads.") and not config.heads:
            skipped[name] = "a head, used in training only (quantize.heads)"
        elif not can_be_quantized(layer):
            skipped[name] = f"{type(layer).__name__} has no quantized form"
        elif name not in used:
            skipped[name] = NOT_CALLED
        elif not has_blocks(weights, activations):
            layers[name] = LayerFormats(weights, activations, config.per_channel)
        else:
            try:
                layers[name] = LayerFormats(weights, activations, block=_block_size(layer, config))
            except ValueError as error:
                skipped[name] = str(error)
    if not layers:
        hint = "Look at quantize.layers, skip_names and default_layer_dtype."
        why = "; ".join(sorted(set(skipped.values()))[:3])
        raise SpecError(f"nothing is left to quantize ({why})", where="quantize.layers", hint=hint)
    residuals = dict(_residuals(student, config, layers))
    backbone = student.backbone.named_modules(prefix=student.backbone_name)
    relu6 = [n for n, m in backbone if config.relu6 and type(m) is nn.ReLU and not n.startswith(settled)]
    return Quantization(layers, residuals, [], relu6, skipped)


def _block_size(layer: nn.Module, config: QuantizeConfig) -> int:
    """Return how many 4-bit weights of ``layer`` share a scale: the largest allowed size that divides its inputs.

    Raises:
        ValueError: with the reason why it can have no blocks.
    """
    if not isinstance(layer, nn.Linear):
        raise ValueError("a convolution: engines have 4-bit weights with float activations in linear layers only")
    sizes = (config.block_size,) if config.block_size else BLOCK_SIZES
    for size in sizes:
        if layer.in_features % size == 0:
            return size
    listed = " or ".join(map(str, sizes))
    raise ValueError(f"its {layer.in_features} inputs are no multiple of a block of {listed} 4-bit weights")


def _residuals(
    student: VisionModel, config: QuantizeConfig, layers: dict[str, LayerFormats]
) -> Iterator[tuple[str, str]]:
    """Yield blocks with the format of their identity branch: the activations' format of the convolution before the
    addition."""
    for name, block in student.named_modules():
        if not has_identity_branch(block) or any(_matches(student, name, p) for p in config.skip_names):
            continue
        if getattr(block, "se", None) is not None and hasattr(block, "downsample"):
            continue  # a ResNet block that adds what squeeze-and-excitation makes of its convolution
        inner = [n for n, m in block.named_modules() if isinstance(m, KINDS) and n.split(".")[0] not in _SIDE_BRANCHES]
        formats = layers.get(f"{name}.{inner[-1]}") if inner else None
        if formats is not None and formats.activations is not None:
            yield name, formats.activations


def place_attention(student: VisionModel, config: QuantizeConfig, callers: Sequence[str]) -> dict[str, str]:
    """Return the format of attention's operands by the module that computes it; none unless the spec asks for it.

    Args:
        callers: modules that call torch's fused attention.

    Raises:
        SpecError: no module does.
    """
    if config.attention is None:
        return {}
    settled = tuple(prefix for prefix in student.architecture.quantizations if prefix)
    names = [name for name in callers if not name.startswith(settled)]
    names = [name for name in names if not any(_matches(student, name, pattern) for pattern in config.skip_names)]
    if not names:
        hint = "Leave it out; torch's scaled_dot_product_attention is what is quantized."
        raise SpecError("no module of this student calls fused attention", where="quantize.attention", hint=hint)
    return dict.fromkeys(names, SPELLINGS[config.attention.strip().lower()])


def keeps_additions(student: VisionModel, name: str, placement: Quantization, config: QuantizeConfig) -> bool:
    """Return whether the additions in the forward of block ``name`` stay as they are.

    They do in blocks whose identity branch is rounded, that ``quantize.skip_names`` names, that are quantized already,
    and in the model itself, whose forward others may not call.
    """
    settled = tuple(prefix for prefix in student.architecture.quantizations if prefix)
    if name.count(".") < 2 or name.startswith(settled) or any(_matches(student, name, p) for p in config.skip_names):
        return True
    return any(f"{name}.".startswith(f"{block}.") for block in placement.residuals)


_SIDE_BRANCHES = ("downsample", "se")  # children of a block that are not on its main branch


def _pattern_names(student: VisionModel, name: str) -> list[str]:
    """Return the names that a pattern may use: the whole one, and those without the prefixes of the student."""
    return [name, *[name.removeprefix(p) for p in student.name_prefixes if name.startswith(p)]]


def _matches(student: VisionModel, name: str, pattern: str) -> bool:
    """Return whether ``pattern`` matches the name of a layer, of a module that contains it, or of its class."""
    layer = student.get_submodule(name)
    classes = [k.__name__ for k in type(layer).__mro__ if issubclass(k, nn.Module) and k is not nn.Module]
    if pattern.removeprefix("torch.").removeprefix("nn.") in classes:
        return True
    return any(fnmatch.fnmatchcase(part, pattern) for full in _pattern_names(student, name) for part in _prefixes(full))


def _prefixes(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[: i + 1]) for i in range(len(parts))]


def _pattern_problems(student: VisionModel, config: QuantizeConfig) -> Iterator[Problem]:
    names = [name for name, module in student.named_modules() if isinstance(module, KINDS)]
    patterns = [(f"quantize.layers[{i}].module_name", rule.module_name) for i, rule in enumerate(config.layers)]
    patterns += [(f"quantize.skip_names[{i}]", pattern) for i, pattern in enumerate(config.skip_names)]
    for where, pattern in patterns:
        if not any(_matches(student, name, pattern) for name in names):
            some = ", ".join(names[1:4])
            yield Problem(f"no layer is called {pattern!r}, nor its class", where, f"There are {some}, ...")
