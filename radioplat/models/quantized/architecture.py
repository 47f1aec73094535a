"""Quantized parts of a student as plain data, and the modules built from it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from radioplat.errors import SpecError
from radioplat.models.modifiers.fold_batchnorm import drop_norm
from radioplat.models.quantized.additions import quantize_additions
from radioplat.models.quantized.attention import quantize_attention
from radioplat.models.quantized.fake_quantize import NumberFormat
from radioplat.models.quantized.layers import quantize_layer
from radioplat.models.quantized.quantizer import Quantizer
from radioplat.models.quantized.residual_quantizer import quantize_residual

NOT_CALLED = "no image reaches it, or the model reads its weight without calling it"  # why a layer stays float


@dataclass(frozen=True)
class LayerFormats:
    """Number formats of one layer, by the names of :class:`~radioplat.models.quantized.fake_quantize.NumberFormat`.

    Attributes:
        weights, activations: None for float. The activations are the layer's input.
        per_channel: whether the weight has a scale for each output channel, or one for all.
        block: how many inputs of an output channel share a scale of the weight; None for all of them.
    """

    weights: str | None = "int8"
    activations: str | None = "int8"
    per_channel: bool = True
    block: int | None = None


@dataclass(frozen=True)
class Quantization:
    """Changes to a freshly built student; all names are those of its modules (``backbone.blocks.0.attn.qkv``).

    Attributes:
        layers: the quantized layers.
        residuals: format by block, for blocks with a quantizer on their identity branch.
        folded: pairs (convolution, BatchNorm); the convolution gets a bias, and the BatchNorm is removed.
        relu6: activations that are ReLU6 instead of ReLU.
        skipped: linear layers and convolutions that stay float, and why.
        attention: formats of the operands of both products of attention, by the module that computes it.
        additions: formats of operands of additions, by block and place; see
            :mod:`radioplat.models.quantized.additions`.
        shared: quantizers that use the scale of another, which rounds the same tensor, by name.
    """

    layers: dict[str, LayerFormats] = field(default_factory=dict)
    residuals: dict[str, str] = field(default_factory=dict)
    folded: list[list[str]] = field(default_factory=list)
    relu6: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    additions: dict[str, dict[str, str]] = field(default_factory=dict)
    attention: dict[str, str] = field(default_factory=dict)
    shared: dict[str, str] = field(default_factory=dict)

    @classmethod
    def from_plain(cls, raw: dict[str, Any]) -> Quantization:
        """Inverse of ``dataclasses.asdict``.

        Raises:
            KeyError, TypeError, ValueError: fields or number formats of another version.
        """
        how = cls(**{**raw, "layers": {name: LayerFormats(**formats) for name, formats in raw["layers"].items()}})
        parts = [part for layer in how.layers.values() for part in (layer.weights, layer.activations)]
        added = [format for places in how.additions.values() for format in places.values()]
        for format in {*parts, *how.residuals.values(), *how.attention.values(), *added} - {None}:
            NumberFormat(format)
        return how

    def without_heads(self) -> Quantization:
        """Return the part of the backbone, for a student with other heads."""
        layers = {n: f for n, f in self.layers.items() if n.startswith("backbone.")}
        skipped = {n: why for n, why in self.skipped.items() if n.startswith("backbone.")}
        return replace(self, layers=layers, skipped=skipped, shared=_inside(self.shared, "backbone."))

    def split(self, prefix: str) -> tuple[Quantization, Quantization]:
        """Return the part under ``prefix``, with names without it, and the rest."""
        parts = []
        for own in (True, False):
            cut = prefix if own else ""

            def of(names, own=own):
                return [name for name in names if name.startswith(prefix) is own]

            parts.append(
                Quantization(
                    {n.removeprefix(cut): self.layers[n] for n in of(self.layers)},
                    {n.removeprefix(cut): self.residuals[n] for n in of(self.residuals)},
                    [[n.removeprefix(cut) for n in pair] for pair in self.folded if pair[0].startswith(prefix) is own],
                    [n.removeprefix(cut) for n in of(self.relu6)],
                    {n.removeprefix(cut): self.skipped[n] for n in of(self.skipped)},
                    {n.removeprefix(cut): self.additions[n] for n in of(self.additions)},
                    {n.removeprefix(cut): self.attention[n] for n in of(self.attention)},
                    {
                        n.removeprefix(cut): of_n.removeprefix(cut)
                        for n, of_n in _inside(self.shared, prefix, own).items()
                    },
                )
            )
        return parts[0], parts[1]


def _inside(shared: dict[str, str], prefix: str, inside: bool = True) -> dict[str, str]:
    """Return the pairs of which both names are under ``prefix``, or neither."""
    return {n: of for n, of in shared.items() if n.startswith(prefix) is of.startswith(prefix) is inside}


def quantize_modules(model: nn.Module, how: Quantization) -> None:
    """Replace layers of ``model`` by quantized ones, in place; weights and scales are loaded later.

    Raises:
        SpecError: ``how`` belongs to another model.
    """
    try:
        _quantize(model, how)
    except (AttributeError, TypeError) as error:
        message = f"the quantizers of the pretrained {model.model_kind} do not fit this one ({error})"
        hint = "Start from a checkpoint of the same model, or quantize this one anew."
        raise SpecError(message, where="train.pretrained_model_path", hint=hint) from error


def _quantize(student: nn.Module, how: Quantization) -> None:
    for conv, norm in how.folded:
        layer = student.get_submodule(conv)
        if layer.bias is None:
            layer.bias = nn.Parameter(torch.zeros(layer.weight.shape[0], dtype=layer.weight.dtype))
        drop_norm(student, norm)
    for name in how.relu6:
        parent, _, leaf = name.rpartition(".")
        owner = student.get_submodule(parent)
        setattr(owner, leaf, nn.ReLU6(inplace=getattr(owner, leaf).inplace))
    for name, formats in how.layers.items():
        quantize_layer(student.get_submodule(name), **vars(formats))
    for name, format in how.residuals.items():
        quantize_residual(student.get_submodule(name), format)
    for name, places in how.additions.items():
        quantize_additions(student.get_submodule(name), places)
    for name, format in how.attention.items():
        quantize_attention(student.get_submodule(name), format)
    for name, leader in how.shared.items():
        _quantizer(student, name).follow(_quantizer(student, leader))


def _quantizer(student: nn.Module, name: str) -> Quantizer:
    quantizer = student.get_submodule(name)
    if not isinstance(quantizer, Quantizer):
        raise TypeError(f"{name} is no quantizer")
    return quantizer
