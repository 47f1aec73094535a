"""Where quantizers go: what TensorRT fuses into INT8 and FP8 kernels, and what the spec's rules say.

Weights per output channel, activations at the input of each convolution and linear layer, and so nothing between a
convolution, its bias and its ReLU; the identity branch of blocks whose addition is fused into a convolution.
Normalization layers, attention's own products and everything that is a regression or a classification stay float.

In a detector so do the last layers of its heads for classes and boxes, the layers that say where deformable attention
looks (an offset of a pixel is little beside the range of all of them), and the layer that boxes, which are shares of
the image, enter the decoder by.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator

from torch import nn

from radioplat.errors import Problem, SpecError
from radioplat.models.quantized.architecture import LayerFormats, Quantization
from radioplat.models.quantized.layers import can_be_quantized
from radioplat.models.quantized.residual_quantizer import has_identity_branch
from radioplat.models.vision_model import VisionModel
from radioplat.spec.resolved.number_formats import formats_of
from radioplat.spec.schema.quantize import QuantizeConfig

KINDS = (nn.Linear, nn.modules.conv._ConvNd, nn.Bilinear)


def place(student: VisionModel, asked: QuantizeConfig, used: set[str]) -> Quantization:
    """What of ``student`` is quantized, and of the rest why not.

    Args:
        student: its BatchNorms folded. What has quantizers already is left as it is, and not named: a detector's
            backbone may.
        used: names of the layers that an image runs through; others are read in ways that no quantizer sees.

    Raises:
        SpecError: a pattern meets nothing, or nothing would be quantized.
    """
    if problems := list(_pattern_problems(student, asked)):
        raise SpecError(*problems)
    layers: dict[str, LayerFormats] = {}
    skipped: dict[str, str] = {}
    last = student.float_layers()
    settled = tuple(prefix for prefix in student.architecture.quantizations if prefix)
    for name, layer in student.named_modules():
        if not isinstance(layer, KINDS) or name.startswith(settled):
            continue
        rule = next((r for r in reversed(asked.layers) if _meets(student, name, r.module_name)), None)
        weights, activations = formats_of(asked, rule)
        pattern = next((p for p in asked.skip_names if _meets(student, name, p)), None)
        if pattern is not None:
            skipped[name] = f"quantize.skip_names has {pattern!r}"
        elif weights is None:
            skipped[name] = (
                "no rule of quantize.layers meets it" if rule is None else f"{rule.module_name!r} says native"
            )
        elif name in last and not (rule is not None and rule.module_name in _names(student, name)):
            skipped[name] = last[name]
        elif name.startswith("heads.") and not asked.heads:
            skipped[name] = "heads stay with training (quantize.heads)"
        elif not can_be_quantized(layer):
            skipped[name] = f"{type(layer).__name__} has no quantized form"
        elif name not in used:
            skipped[name] = "no image reaches it, or the model reads its weight by itself"
        else:
            layers[name] = LayerFormats(weights, activations, asked.per_channel)
    if not layers:
        hint = "Look at quantize.layers, skip_names and default_layer_dtype."
        why = "; ".join(sorted(set(skipped.values()))[:3])
        raise SpecError(f"nothing is left to quantize ({why})", where="quantize.layers", hint=hint)
    residuals = dict(_residuals(student, asked, layers))
    backbone = student.backbone.named_modules(prefix=student.backbone_name)
    relu6 = [n for n, m in backbone if type(m) is nn.ReLU]
    relu6 = [n for n in relu6 if asked.relu6 and not n.startswith(settled)]
    return Quantization(layers, residuals, [], relu6, skipped)


def _residuals(
    student: VisionModel, asked: QuantizeConfig, layers: dict[str, LayerFormats]
) -> Iterator[tuple[str, str]]:
    """Blocks, and the format of their identity branch: that of the activations of the convolution it is added to."""
    for name, block in student.named_modules():
        if not has_identity_branch(block) or any(_meets(student, name, p) for p in asked.skip_names):
            continue
        inner = [n for n, m in block.named_modules() if isinstance(m, KINDS) and n.split(".")[0] not in _BESIDE]
        formats = layers.get(f"{name}.{inner[-1]}") if inner else None
        if formats is not None and formats.activations is not None:
            yield name, formats.activations


_BESIDE = ("downsample", "se")  # not on the way that the identity branch is added to


def _names(student: VisionModel, name: str) -> list[str]:
    """What a pattern may call a module: whole, or as the backbone, timm, or a detector in transformers, calls it."""
    return [name, *[name.removeprefix(p) for p in student.name_prefixes if name.startswith(p)]]


def _meets(student: VisionModel, name: str, pattern: str) -> bool:
    """Whether ``pattern`` is of the layer, of a module around it, or of its class."""
    layer = student.get_submodule(name)
    classes = [k.__name__ for k in type(layer).__mro__ if issubclass(k, nn.Module) and k is not nn.Module]
    if pattern.removeprefix("torch.").removeprefix("nn.") in classes:
        return True
    return any(fnmatch.fnmatchcase(part, pattern) for full in _names(student, name) for part in _around(full))


def _around(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[: i + 1]) for i in range(len(parts))]


def _pattern_problems(student: VisionModel, asked: QuantizeConfig) -> Iterator[Problem]:
    names = [name for name, module in student.named_modules() if isinstance(module, KINDS)]
    patterns = [(f"quantize.layers[{i}].module_name", rule.module_name) for i, rule in enumerate(asked.layers)]
    patterns += [(f"quantize.skip_names[{i}]", pattern) for i, pattern in enumerate(asked.skip_names)]
    for where, pattern in patterns:
        if not any(_meets(student, name, pattern) for name in names):
            some = ", ".join(names[1:4])
            yield Problem(f"no layer is called {pattern!r}, nor its class", where, f"There are {some}, ...")
