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
from radioplat.models.detectors.base import Detector, DetectorArchitecture
from radioplat.models.quantized.architecture import LayerFormats, Quantization
from radioplat.models.quantized.layers import can_be_quantized
from radioplat.models.quantized.residual_quantizer import has_identity_branch
from radioplat.models.student.student import Student
from radioplat.spec.resolved.number_formats import formats_of
from radioplat.spec.schema.quantize import QuantizeConfig

KINDS = (nn.Linear, nn.modules.conv._ConvNd, nn.Bilinear)


def place(student: Student | Detector, asked: QuantizeConfig, used: set[str]) -> Quantization:
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
    detects = isinstance(student, Detector)
    last = _last_of_detector(student) if detects else _last_layers(student)
    form = student.architecture
    settled = "student." if isinstance(form, DetectorArchitecture) and form.student.quantized is not None else "\0"
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
    whole = "student.backbone" if detects else "backbone"
    relu6 = [n for n, m in student.get_submodule(whole).named_modules(prefix=whole) if type(m) is nn.ReLU]
    relu6 = [n for n in relu6 if asked.relu6 and not n.startswith(settled)]
    return Quantization(layers, residuals, [], relu6, skipped)


def _residuals(
    student: Student | Detector, asked: QuantizeConfig, layers: dict[str, LayerFormats]
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


def _last_layers(student: Student) -> dict[str, str]:
    """Layers whose output is the student's own, and what they are."""
    found = {n: "a classifier" for n, _ in student.named_modules() if n == "classifier"}
    prefixes = getattr(student.backbone, "classifier_prefix", ())
    for name, _ in student.named_modules():
        if any(f"{name}.".startswith(f"backbone.model.{p}") for p in prefixes):
            found[name] = "a classifier"
    for teacher, head in student.heads.items():
        for kind in ("summary", "spatial", "logits"):
            part = getattr(head, kind, None)
            linears = [] if part is None else [n for n, m in part.named_modules() if isinstance(m, nn.Linear)]
            if linears:
                found[f"heads.{teacher}.{kind}.{linears[-1]}".rstrip(".")] = "a regression"
        for binding in head.bindings:
            found[f"heads.{teacher}.bindings.{binding}"] = "a regression"
    return found


# In transformers' detectors: what stays float whole, and the heads whose last layer does.
_WHOLE = {
    "class_embed": "a classifier",
    "enc_score_head": "a classifier",
    "sampling_offsets": "says where attention looks",
}
_BOXES = ("bbox_embed", "enc_bbox_head")


def _last_of_detector(detector: Detector) -> dict[str, str]:
    """As :func:`_last_layers`."""
    found = {}
    for name, _ in detector.detr.named_modules(prefix="detr"):
        parts = name.split(".")
        told = next((_WHOLE[part] for part in parts if part in _WHOLE), None)
        if told is not None:
            found[name] = told
        boxes, _, number = name.rpartition(".layers.")
        if number.isdigit() and any(part in _BOXES for part in parts):
            if int(number) == len(detector.get_submodule(f"{boxes}.layers")) - 1:
                found[name] = "a regression"
        if name.endswith("query_pos_head.layers.0"):
            found[name] = "takes boxes"
    return found


def _names(student: Student | Detector, name: str) -> list[str]:
    """What a pattern may call a module: whole, or as the backbone, timm, or a detector in transformers, calls it."""
    detects = isinstance(student, Detector)
    inner = student.student if detects else student
    prefixes = ["backbone.model.", "backbone."] if inner.backbone.target is not inner.backbone else ["backbone."]
    if detects:
        prefixes = [*(f"student.{p}" for p in prefixes), "student.", "detr.model.", "detr."]
    return [name, *[name.removeprefix(p) for p in prefixes if name.startswith(p)]]


def _meets(student: Student | Detector, name: str, pattern: str) -> bool:
    """Whether ``pattern`` is of the layer, of a module around it, or of its class."""
    layer = student.get_submodule(name)
    classes = [k.__name__ for k in type(layer).__mro__ if issubclass(k, nn.Module) and k is not nn.Module]
    if pattern.removeprefix("torch.").removeprefix("nn.") in classes:
        return True
    return any(fnmatch.fnmatchcase(part, pattern) for full in _names(student, name) for part in _around(full))


def _around(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[: i + 1]) for i in range(len(parts))]


def _pattern_problems(student: Student | Detector, asked: QuantizeConfig) -> Iterator[Problem]:
    names = [name for name, module in student.named_modules() if isinstance(module, KINDS)]
    patterns = [(f"quantize.layers[{i}].module_name", rule.module_name) for i, rule in enumerate(asked.layers)]
    patterns += [(f"quantize.skip_names[{i}]", pattern) for i, pattern in enumerate(asked.skip_names)]
    for where, pattern in patterns:
        if not any(_meets(student, name, pattern) for name in names):
            some = ", ".join(names[1:4])
            yield Problem(f"no layer is called {pattern!r}, nor its class", where, f"There are {some}, ...")
