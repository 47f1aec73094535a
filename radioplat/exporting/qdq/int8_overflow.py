"""INT8 products that overflow on x86 CPUs without VNNI, in onnxruntime and OpenVINO.

There it adds two products of an activation and a weight in 16 bits; weights of 7 bits, which ``export.cpu_target=x86``
writes, are small enough. https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

from radioplat.common.cpu_threads import has_int8_units

_HIGHEST = 64  # magnitude of a weight of 7 bits
OVERFLOW = (
    "onnxruntime's INT8 products overflow on this CPU, which has no AVX512-VNNI, AVX-VNNI or AMX: features differ from "
    "those on other CPUs. For such CPUs export.cpu=static with export.cpu_target=x86 writes weights of 7 bits"
)


def overflow_warning(model: ModelProto) -> str:
    """Return :data:`OVERFLOW` if this CPU has no units for INT8 and ``model`` has weights of 8 bits; else no text."""
    return "" if has_int8_units() or not _has_wide_weights(model) else OVERFLOW


def without_overflow(model: ModelProto) -> int:
    """Give weights of 8 bits 7, with twice the step, in place; return the number of layers.

    OpenVINO's products overflow as onnxruntime's do, by more (a CNN's features had a cosine of 0.5 with those of the
    file). Depthwise convolutions keep 8 bits: their products are not added in pairs.
    """
    tensors = {each.name: each for each in model.graph.initializer}
    count = 0
    for weight in list(_weights(model)):
        if weight.is_depthwise or weight.highest <= _HIGHEST:
            continue
        changed = {weight.step: 2 * numpy_helper.to_array(tensors[weight.step])}
        if weight.quantize is None:
            whole = numpy_helper.to_array(tensors[weight.tensor])
            changed[weight.tensor] = np.rint(whole / 2).astype(np.int8)
        for name, array in changed.items():
            if (new := f"{name}_of_7_bits") not in tensors:
                tensors[new] = numpy_helper.from_array(array, new)
                model.graph.initializer.append(tensors[new])
            for node in (weight.dequantize, weight.quantize):
                if node is not None:
                    node.input[:] = [new if each == name else each for each in node.input]
        count += 1
    used = {name for node in model.graph.node for name in node.input}
    kept = [each for each in model.graph.initializer if each.name in used]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    return count


@dataclass(frozen=True)
class _Weight:
    """A quantized weight of two or more dimensions.

    Attributes:
        tensor, step: names of its tensor, in INT8 or, with ``quantize``, in floats, and of its scale.
        highest: largest magnitude in INT8.
    """

    tensor: str
    step: str
    dequantize: NodeProto
    quantize: NodeProto | None
    highest: float
    is_depthwise: bool


def _weights(model: ModelProto) -> Iterator[_Weight]:
    tensors = {each.name: each for each in model.graph.initializer}
    makers = {node.output[0]: node for node in model.graph.node if node.op_type == "QuantizeLinear"}
    for node in model.graph.node:
        if node.op_type != "DequantizeLinear":
            continue
        quantize = makers.get(node.input[0])
        tensor = tensors.get(quantize.input[0] if quantize else node.input[0])
        step, point = tensors.get(node.input[1]), tensors.get(node.input[2] if len(node.input) > 2 else "")
        if tensor is None or step is None or len(tensor.dims) < 2 or len(step.dims) > 1:  # steps of blocks are left
            continue
        kind = tensor.data_type if quantize is None else point.data_type if point is not None else TensorProto.UINT8
        if kind != TensorProto.INT8:
            continue
        values = np.abs(numpy_helper.to_array(tensor).astype(np.float32))
        axis = next((a.i for a in node.attribute if a.name == "axis"), 1)
        steps = numpy_helper.to_array(step).reshape([-1 if i == axis % values.ndim else 1 for i in range(values.ndim)])
        highest = float((values / steps if quantize else values).max(initial=0)) if values.size else 0.0
        depthwise = values.ndim == 4 and values.shape[1] == 1
        yield _Weight(tensor.name, step.name, node, quantize, highest, depthwise)


def _has_wide_weights(model: ModelProto) -> bool:
    return any(weight.highest > _HIGHEST for weight in _weights(model))
