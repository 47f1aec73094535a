"""Linter of Q/DQ placement: finds nodes because of which TensorRT refuses the graph, or runs a layer in floats.

The rules are those of TensorRT's explicit quantization (Developer Guide, "Working with Quantized Types"): a layer runs
in low precision if both its operands are outputs of DequantizeLinear. Weights have scales per output channel,
activations per tensor, all symmetric. There are no Q/DQ between a convolution and operations fused to it. The other
branch of an addition that is fused into a convolution is quantized. A tensor has one scale, also where branches are
joined or pooled. Normalization is in floats.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto

from radioplat.exporting.qdq.graph import DEQUANTIZE, MOVES_ONLY, QUANTIZE, Graph, attribute, name_of, read_graph
from radioplat.exporting.qdq.graph_layers import CONVOLUTIONS, Layer, block_of, find_layers
from radioplat.spec.schema.quantize import BLOCK_SIZES

NORMALIZATIONS = frozenset(
    {"LayerNormalization", "BatchNormalization", "InstanceNormalization", "GroupNormalization", "RMSNormalization"}
    | {"LpNormalization", "Softmax", "LogSoftmax"}
)
# Operations that TensorRT fuses to a convolution before them.
_FUSED = frozenset({"Relu", "LeakyRelu", "Clip", "BatchNormalization", "PRelu"})
# Activations that it fuses too, as pointwise operations: SiLU, HardSwish, GELU, Mish, gates, and what they are made of.
_SMOOTH = frozenset(
    {"Sigmoid", "Swish", "HardSigmoid", "HardSwish", "Gelu", "Erf", "Tanh", "Mish", "Softplus", "Elu", "Selu", "Celu"}
)
# Operations whose outputs are values of their inputs: TensorRT moves a QuantizeLinear from behind to before them.
_SELECTS = MOVES_ONLY | {"Concat", "MaxPool"}
_UNSIGNED = frozenset({TensorProto.UINT8, TensorProto.UINT4, TensorProto.UINT16})
ERROR, ADVICE = "error", "advice"


@dataclass(frozen=True)
class Finding:
    """One misplaced or missing Q/DQ.

    Attributes:
        node: name of the node.
        rule: a short name (``input-without-dq``).
        message: the problem of that node.
        level: ``error``, or ``advice`` if it only reduces speed.
    """

    node: str
    rule: str
    message: str
    level: str = ERROR


@dataclass(frozen=True)
class LintReport:
    """Result of the linter.

    Attributes:
        layers: number of convolutions and linear layers of the graph.
        quantized: number of those whose operands are outputs of DequantizeLinear.
        allowed: layers that are in floats, as the caller allows.
    """

    layers: int
    quantized: int
    allowed: list[str]
    findings: list[Finding]

    @property
    def errors(self) -> list[Finding]:
        """Findings that are not only advice."""
        return [finding for finding in self.findings if finding.level == ERROR]

    def to_json(self) -> dict:
        """Return counts and the list ``lint``."""
        counts = {"layers": self.layers, "quantized": self.quantized, "allowed": self.allowed}
        return {**counts, "lint": [asdict(finding) for finding in self.findings]}


def lint(model: ModelProto | str | Path, allowed: Sequence[str] = (), weight_only: Collection[str] = ()) -> LintReport:
    """Find misplaced and missing Q/DQ in ``model``.

    Args:
        model: a graph with its weights, or a file.
        allowed: patterns (``*`` as in a shell) of node names of layers that may be in floats.
        weight_only: patterns of layers whose activations are in floats on purpose; a finding is advice for them.

    Raises:
        EngineError: there is no such file, or it is not ONNX.
    """
    if not isinstance(model, ModelProto):
        model = read_graph(model)
    graph = Graph(model)
    layers = find_layers(graph)
    free, lighter = (
        [layer.name for layer in layers if any(fnmatch.fnmatchcase(layer.name, p) for p in patterns)]
        for patterns in (allowed, weight_only)
    )
    findings: list[Finding] = []
    for layer in layers:
        findings += _layer(graph, layer, layer.name in free, layer.name in lighter)
    for node in graph.nodes:
        findings += _node(graph, node)
    findings += _two_scales(graph)
    quantized = sum(layer.is_quantized for layer in layers)
    free = [layer.name for layer in layers if layer.name in free and not layer.is_quantized]
    return LintReport(len(layers), quantized, free, findings)


def _layer(graph: Graph, layer: Layer, may_be_float: bool, is_weight_only: bool) -> Iterator[Finding]:
    data, weight, name = layer.data, layer.weight, layer.name
    if data is None and weight is None:
        if not may_be_float:
            yield Finding(name, "layer-not-quantized", "neither its input nor its weight is the output of a DQ")
        return
    if data is None and not layer.is_weight_only:
        message = "its weight is quantized and its input is not"
        if is_weight_only:  # smaller, but not faster
            message += ", as in the student: it computes in floats"
        yield Finding(name, "input-without-dq", message, ADVICE if is_weight_only else ERROR)
    if weight is None:
        yield Finding(name, "weight-without-dq", "its input is quantized and its weight is not")
        return
    if data is not None and not _compatible(graph, data, weight):
        yield Finding(name, "unlike-formats", "its input and its weight are quantized to incompatible types")
    scale = graph.array(weight.input[1])
    if stored_type(graph, weight) == TensorProto.INT4 and block_of(weight) not in BLOCK_SIZES:
        sizes = " or ".join(map(str, BLOCK_SIZES))
        message = f"TensorRT has 4-bit weights with a scale for each block of {sizes}, with float activations only"
        yield Finding(name, "int4-not-in-blocks", message)
    if scale is None:
        return
    if scale.size == 1 and layer.channels != 1:
        message = f"the weight of {name} has one scale for {layer.channels or 'all'} output channels"
        yield Finding(name_of(weight), "weight-not-per-channel", message)
    elif scale.ndim == 1 and scale.size > 1 and layer.weight_axis not in (None, layer.channel_axis):
        message = f"the weight of {name} has a scale for each index of axis {layer.weight_axis}, not of its outputs"
        yield Finding(name_of(weight), "weight-wrong-axis", message)


def _compatible(graph: Graph, data: NodeProto, weight: NodeProto) -> bool:
    kinds = [stored_type(graph, node) for node in (data, weight)]
    return None in kinds or kinds[0] == kinds[1] or kinds[1] == TensorProto.INT4


def stored_type(graph: Graph, node: NodeProto) -> int | None:
    """Return ONNX's number of the type that a Q or DQ quantizes to; None if unknown."""
    if len(node.input) > 2 and node.input[2]:
        zero = graph.tensor(node.input[2])
        return None if zero is None else zero.data_type
    if output_type := attribute(node, "output_dtype", 0):
        return output_type
    if node.op_type == QUANTIZE:
        return TensorProto.UINT8  # ONNX's default
    tensor, producer = graph.tensor(node.input[0]), graph.producer(node.input[0])
    if tensor is not None:
        return tensor.data_type
    return stored_type(graph, producer) if producer is not None and producer.op_type == QUANTIZE else None


def _node(graph: Graph, node: NodeProto) -> Iterator[Finding]:
    if node.op_type in (QUANTIZE, DEQUANTIZE):
        yield from _numbers(graph, node)
    if node.op_type == QUANTIZE:
        yield from _quantize(graph, node)
    elif node.op_type == DEQUANTIZE:
        tensor = graph.tensor(node.input[0])
        if tensor is not None and tensor.data_type == TensorProto.INT32:
            yield Finding(name_of(node), "bias-dq", "it has a bias as int32, and TensorRT needs biases in floats")
        elif tensor is None and not _produced_by(graph, node.input[0], QUANTIZE):
            yield Finding(name_of(node), "dq-without-q", "its input is neither from a QuantizeLinear nor a weight")
    elif node.op_type in NORMALIZATIONS:
        if _is_dequantized(graph, node.input[0]):
            yield Finding(name_of(node), "quantized-normalization", f"the input of this {node.op_type} is quantized")
    elif node.op_type == "Add":
        yield from _residual(graph, node)
    elif node.op_type == "Concat":
        yield from _concat(graph, node)
    elif node.op_type == "MatMul" and not any(graph.is_constant(name) for name in node.input):
        if len({_is_dequantized(graph, name) for name in node.input}) == 2:
            yield Finding(name_of(node), "half-quantized", "one of the two activations it multiplies is quantized")


def _numbers(graph: Graph, node: NodeProto) -> Iterator[Finding]:
    name, scale = name_of(node), graph.array(node.input[1])
    kind = stored_type(graph, node)
    if scale is None and not graph.is_constant(node.input[1]):
        yield Finding(name, "scale-not-constant", "its scale is computed from the image")
    elif scale is not None and not (np.isfinite(scale.astype(np.float64)).all() and (scale > 0).all()):
        yield Finding(name, "scale-zero", "a scale is not a positive number")
    # The type of a pair is reported once, for its Q; a DQ of a weight has no Q.
    if node.op_type == DEQUANTIZE and _produced_by(graph, node.input[0], QUANTIZE):
        return
    if kind in _UNSIGNED:
        yield Finding(name, "unsigned", "it quantizes to unsigned integers, and TensorRT supports only signed ones")
    zero = graph.array(node.input[2]) if len(node.input) > 2 and node.input[2] else None
    if zero is not None and kind not in _UNSIGNED and np.any(zero.astype(np.float32) != 0):
        yield Finding(name, "asymmetric", "its zero point is not 0")
    constant = graph.is_constant(node.input[0])
    if node.op_type == QUANTIZE and not constant and scale is not None and scale.size > 1:
        yield Finding(name, "activation-per-channel", f"an activation has {scale.size} scales instead of one")


def _quantize(graph: Graph, node: NodeProto) -> Iterator[Finding]:
    name, consumers = name_of(node), graph.consumers(node.output[0])
    others = [consumer for consumer in consumers if consumer.op_type != DEQUANTIZE]
    if others or not consumers:
        reader = name_of(others[0]) if others else "no node"
        yield Finding(name, "q-without-dq", f"its output is read by {reader} instead of a DequantizeLinear")
    for consumer in consumers:
        if consumer.op_type == DEQUANTIZE and not same_scale(graph, node, consumer):
            yield Finding(name, "unlike-scales", f"its scale or zero point is not that of {name_of(consumer)}")
    source, passed = graph.source(node.input[0], MOVES_ONLY)
    before = graph.producer(source)
    if before is not None and before.op_type == DEQUANTIZE and not same_scale(graph, before, node):
        yield Finding(
            name, "double-quantization", f"it quantizes the output of {name_of(before)} again, by another scale"
        )
    if before is None or before.op_type not in CONVOLUTIONS:
        return
    if not all(_has_one_consumer(graph, name) for name in (source, *(step.output[0] for step in passed))):
        return  # other nodes read the output of the convolution, so nothing is fused to it
    dequantized = [consumer.output[0] for consumer in consumers if consumer.op_type == DEQUANTIZE]
    for after in (node for output in dequantized for node in graph.consumers(output)):
        fused = after.op_type in _FUSED or _is_bias(graph, after) or _is_smooth(graph, after)
        if fused or (after.op_type == "Add" and not _fused_convolutions(graph, after)):
            message = f"it is between {name_of(before)} and {name_of(after)}, which would be one kernel"
            yield Finding(name, "pair-behind-conv", message)


def _two_scales(graph: Graph) -> Iterator[Finding]:
    """Report tensors that are quantized by two scales, directly or behind operations that only select values."""
    readers: dict[str, list[NodeProto]] = {}
    for node in graph.nodes:
        if node.op_type == QUANTIZE and not graph.is_constant(node.input[0]):
            for name in _selected_from(graph, node.input[0]):
                readers.setdefault(name, []).append(node)
    reported = set()
    for first, *others in readers.values():
        other = next((other for other in others if not same_scale(graph, first, other)), None)
        if other is None or (name_of(first), name_of(other)) in reported:
            continue
        reported.add((name_of(first), name_of(other)))
        where = "" if other.input[0] == first.input[0] else ", which a concatenation, pooling or reshaping passes on,"
        message = f"{name_of(other)} quantizes the same tensor{where} by another scale, so it is written twice"
        yield Finding(name_of(first), "two-scales", message)


def _selected_from(graph: Graph, name: str) -> list[str]:
    """Return the tensors whose values tensor ``name`` has, over several steps, and itself."""
    reached, waiting = [], [name]
    while waiting:
        each = waiting.pop()
        if each in reached:
            continue
        reached.append(each)
        before = graph.producer(each)
        if before is not None and before.op_type in _SELECTS:
            parts = before.input if before.op_type == "Concat" else before.input[:1]
            waiting += [part for part in parts if not graph.is_constant(part)]
    return reached


def _concat(graph: Graph, node: NodeProto) -> Iterator[Finding]:
    """Check that the quantized tensors that are joined have one scale."""
    producers = [graph.producer(graph.source(n, MOVES_ONLY)[0]) for n in node.input if not graph.is_constant(n)]
    pairs = [each for each in producers if each is not None and each.op_type == DEQUANTIZE]
    other = next((pair for pair in pairs[1:] if not same_scale(graph, pairs[0], pair)), None)
    if other is not None:
        message = f"it joins the outputs of {name_of(pairs[0])} and {name_of(other)}, whose scales differ"
        yield Finding(name_of(node), "two-scales", message)


def _residual(graph: Graph, node: NodeProto) -> Iterator[Finding]:
    """Check the other branch of an addition that is fused into a quantized convolution."""
    if _is_bias(graph, node):
        return
    convolutions = _fused_convolutions(graph, node)
    if not convolutions:
        return
    branches = [name for name in node.input if name != convolutions[0]]
    if branches and not _is_dequantized(graph, branches[0]):
        conv = name_of(graph.producer(convolutions[0]))
        message = f"{conv} could be fused with it, and its other branch has no Q/DQ"
        # Residual streams in floats on purpose (ConvNeXt's) have no ReLU after the addition.
        relu = any(consumer.op_type in _FUSED for consumer in graph.consumers(node.output[0]))
        yield Finding(name_of(node), "residual-without-dq", message, ERROR if relu else ADVICE)


def _fused_convolutions(graph: Graph, add: NodeProto) -> list[str]:
    """Return the inputs of ``add`` that are outputs of a quantized convolution without other readers."""
    names = []
    for name in add.input:
        conv = graph.producer(name)
        quantized = conv is not None and conv.op_type in CONVOLUTIONS and _is_dequantized(graph, conv.input[0])
        if quantized and _has_one_consumer(graph, name):
            names.append(name)
    return names


def _has_one_consumer(graph: Graph, tensor: str) -> bool:
    """Return whether one node reads a tensor; one with several readers, or an output, is written and not fused."""
    return tensor not in graph.outputs and len(graph.consumers(tensor)) == 1


def _is_bias(graph: Graph, node: NodeProto) -> bool:
    return node.op_type == "Add" and any(graph.is_constant(name) for name in node.input)


def _is_smooth(graph: Graph, node: NodeProto) -> bool:
    """Return whether ``node`` is an activation, or the factor before the error function in a GELU."""
    if node.op_type in ("Mul", "Div") and any(graph.is_constant(name) for name in node.input):
        return any(consumer.op_type == "Erf" for consumer in graph.consumers(node.output[0]))
    return node.op_type in _SMOOTH


def _is_dequantized(graph: Graph, name: str) -> bool:
    return _produced_by(graph, graph.source(name, MOVES_ONLY)[0], DEQUANTIZE)


def _produced_by(graph: Graph, name: str, kind: str) -> bool:
    producer = graph.producer(name)
    return producer is not None and producer.op_type == kind


def same_scale(graph: Graph, a: NodeProto, b: NodeProto) -> bool:
    """Return whether two Q/DQ nodes have equal scales and zero points."""
    for i in (1, 2):
        names = [node.input[i] if len(node.input) > i else "" for node in (a, b)]
        if names[0] == names[1]:
            continue
        values = [graph.array(name) if name else np.zeros(1, np.float32) for name in names]
        known = [value.astype(np.float32) for value in values if value is not None]
        if len(known) < len(values):
            return False
        first, second = known
        if i == 1 and first.shape != second.shape and (first.size > 1 or second.size > 1):
            return False
        if not np.array_equal(
            np.broadcast_to(first, np.broadcast_shapes(first.shape, second.shape)), second + 0 * first
        ):
            return False
    return True
