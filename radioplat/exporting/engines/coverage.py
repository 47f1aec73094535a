"""How much of an engine is quantized: by the kernels that the builder chose, and by the layers of the ONNX file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from radioplat.exporting.engines.interface import Kernel
from radioplat.exporting.engines.onnx_layers import WeightLayer
from radioplat.spec.resolved.number_formats import FLOATS


@dataclass(frozen=True)
class Coverage:
    """What multiplies in which type.

    Attributes:
        kernels: kernels of convolutions and linear layers by data type; None where the builder does not tell.
        others: kernels by data type that multiply two activations (attention, fused or not).
        eligible: convolutions and linear layers of the ONNX file.
        quantized: those of them between Q/DQ nodes, by format.
        not_quantized: names of the others, as modules of the student where the file says.
        in_float_kernels: names of quantized layers that a float kernel took all the same, alone or beside another;
            None where the builder names no layers.
        unseen: names of quantized layers that no kernel names: nobody knows what they run in. None likewise.
        taken_only_by: quantized layers by the one data type of all the kernels that took them. None likewise.
    """

    kernels: dict[str, int] | None
    others: dict[str, int]
    eligible: int
    quantized: dict[str, int]
    not_quantized: list[str]
    in_float_kernels: list[str] | None
    unseen: list[str] | None
    taken_only_by: dict[str, int] | None

    def share(self, data_type: str) -> tuple[int, int] | None:
        """Kernels of layers in ``data_type``, and all of them; None where the builder does not tell."""
        return None if self.kernels is None else (self.kernels.get(data_type, 0), sum(self.kernels.values()))


def coverage(layers: Sequence[WeightLayer], kernels: Sequence[Kernel] | None) -> Coverage:
    """Count ``kernels``, and look up which of them took each quantized one of ``layers``."""
    products = _of_layers(layers, kernels or ())
    others = [kernel for kernel in kernels or () if kernel not in products]
    types = _types(layers, products)
    return Coverage(
        kernels=dict(Counter(kernel.data_type for kernel in products)) if kernels is not None else None,
        others=dict(Counter(kernel.data_type for kernel in others)),
        eligible=len(layers),
        quantized=dict(Counter(layer.format for layer in layers if layer.format)),
        not_quantized=[layer.module for layer in layers if not layer.format],
        in_float_kernels=None if types is None else [name for name, found in types if found & set(FLOATS)],
        unseen=None if types is None else [name for name, found in types if not found],
        taken_only_by=None if types is None else dict(Counter(min(found) for _, found in types if len(found) == 1)),
    )


def _of_layers(layers: Sequence[WeightLayer], kernels: Sequence[Kernel]) -> list[Kernel]:
    """The kernels that hold a layer; where the builder does not name each layer, all but those of attention."""
    names = {layer.name for layer in layers}
    holding = [kernel for kernel in kernels if kernel.kind == "conv_gemm" and names.intersection(kernel.layers)]
    if names <= {name for kernel in holding for name in kernel.layers}:
        return holding
    return [kernel for kernel in kernels if kernel.kind == "conv_gemm"]


def _types(layers: Sequence[WeightLayer], products: Sequence[Kernel]) -> list[tuple[str, set[str]]] | None:
    """Each quantized layer's name and the data types of the kernels that took it; None where no kernel names layers."""
    taken_by: dict[str, set[str]] = {}
    for kernel in products:
        for name in kernel.layers:
            taken_by.setdefault(name, set()).add(kernel.data_type)
    if not taken_by:
        return None
    return [(layer.module, taken_by.get(layer.name, set())) for layer in layers if layer.format]
