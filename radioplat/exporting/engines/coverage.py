"""Quantized share of an engine, by the builder's kernels and by the layers of the ONNX file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from radioplat.exporting.engines.interface import Kernel, WeightLayer
from radioplat.spec.resolved.number_formats import ACTIVATIONS, FLOATS


@dataclass(frozen=True)
class Coverage:
    """Data types of kernels and layers.

    Attributes:
        kernels: number of kernels of convolutions and linear layers by data type; None if the builder reports none.
        others: number of kernels that multiply two activations (attention, fused or not), by data type.
        eligible: number of convolutions and linear layers of the ONNX file.
        quantized: number of those between Q/DQ nodes, by format.
        not_quantized: names of the others; the student's module names if the file has them.
        in_float_kernels: names of quantized layers with a float kernel, even if another kernel is not; None if the
            builder does not name layers.
        unseen: names of quantized layers that no kernel names, so that their data type is unknown. None likewise.
        taken_only_by: number of quantized layers whose kernels all have one data type, by that type. None likewise.
        writing: number of kernels that compute in 8 bits, by the type of their output: if it is a float, more bytes are
            written, and another layer has to round them. None if the builder reports no types of outputs.
        requantizing: number of those other layers; None if the builder reports no types.
    """

    kernels: dict[str, int] | None
    others: dict[str, int]
    eligible: int
    quantized: dict[str, int]
    not_quantized: list[str]
    in_float_kernels: list[str] | None
    unseen: list[str] | None
    taken_only_by: dict[str, int] | None
    writing: dict[str, int] | None = None
    requantizing: int | None = None

    def share(self, data_type: str) -> tuple[int, int] | None:
        """Return the number of layers' kernels in ``data_type``, and of all; None if the builder reports none."""
        return None if self.kernels is None else (self.kernels.get(data_type, 0), sum(self.kernels.values()))


def coverage(
    layers: Sequence[WeightLayer], kernels: Sequence[Kernel] | None, requantizing: int | None = None
) -> Coverage:
    """Count ``kernels``, and find those of each quantized layer."""
    products = _of_layers(layers, kernels or ())
    writes = [kernel.writes for kernel in kernels or () if kernel.data_type in ACTIVATIONS]
    others = [kernel for kernel in kernels or () if kernel not in products]
    types = _types(layers, products)
    return Coverage(
        kernels=dict(Counter(kernel.data_type for kernel in products)) if kernels is not None else None,
        others=dict(Counter(kernel.data_type for kernel in others)),
        eligible=len(layers),
        quantized=dict(Counter(layer.format for layer in layers if layer.format)),
        not_quantized=[layer.module for layer in layers if not layer.format],
        in_float_kernels=None if types is None else [name for name, used in types if used & set(FLOATS)],
        unseen=None if types is None else [name for name, used in types if not used],
        taken_only_by=None if types is None else dict(Counter(min(used) for _, used in types if len(used) == 1)),
        writing=dict(Counter(writes)) if all(writes) and kernels is not None else None,
        requantizing=requantizing,
    )


def _of_layers(layers: Sequence[WeightLayer], kernels: Sequence[Kernel]) -> list[Kernel]:
    """Return the kernels of layers; if the builder does not name all layers, all kernels but those of attention."""
    names = {layer.name for layer in layers}
    products = [kernel for kernel in kernels if kernel.kind == "conv_gemm"]
    named = [kernel for kernel in products if names.intersection(kernel.layers)]
    return named if names <= {name for kernel in named for name in kernel.layers} else products


def _types(layers: Sequence[WeightLayer], products: Sequence[Kernel]) -> list[tuple[str, set[str]]] | None:
    """Return each quantized layer's name and its kernels' data types; None if no kernel names layers."""
    types: dict[str, set[str]] = {}
    for kernel in products:
        for name in kernel.layers:
            types.setdefault(name, set()).add(kernel.data_type)
    return [(layer.module, types.get(layer.name, set())) for layer in layers if layer.format] if types else None
