"""Layers with weights in an ONNX graph, with the names of their modules and their formats."""

from __future__ import annotations

from onnx import ModelProto, TensorProto

from radioplat.exporting.engines.interface import WeightLayer
from radioplat.exporting.qdq.graph import Graph
from radioplat.exporting.qdq.graph_layers import Layer, block_of, find_layers
from radioplat.exporting.qdq.lint import stored_type
from radioplat.exporting.qdq.mark import module_of
from radioplat.spec.resolved.number_formats import DATA_TYPES, QUANTIZED

_FORMATS = {DATA_TYPES[name].onnx_type: name for name in QUANTIZED}


def weight_layers(model: ModelProto) -> list[WeightLayer]:
    """Return the convolutions and linear layers of ``model``, in the graph's order; no products of two activations."""
    graph = Graph(model)
    return [
        WeightLayer(layer.name, module_of(layer.node) or layer.name, _format(graph, layer), block_of(layer.weight))
        for layer in find_layers(graph)
    ]


def _format(graph: Graph, layer: Layer) -> str | None:
    if not layer.is_quantized or layer.weight is None:
        return None
    code = stored_type(graph, layer.weight)
    if code is None:
        return None
    name = TensorProto.DataType.Name(code)
    return _FORMATS.get(name, name.lower())
