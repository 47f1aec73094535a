"""``layers_precision``: change the float type of single layers of a strongly typed file.

A strongly typed network computes in the types of its file, so the file is rewritten: weights of these layers are stored
in the type, their inputs and outputs are cast. Nothing is cast between two neighbours of one type.
"""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Sequence
from pathlib import Path

import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper

from radioplat.errors import EngineError, Problem
from radioplat.exporting.engines.interface import SECTION
from radioplat.exporting.engines.onnx_input import OnnxInput, read_onnx
from radioplat.exporting.onnx.precision import ALWAYS_FLOAT, FLOAT_CODES, as_type
from radioplat.exporting.onnx.publish import save
from radioplat.exporting.qdq.graph import replace_entries
from radioplat.exporting.qdq.mark import module_of

_WHERE = f"{SECTION}.tensorrt.layers_precision"
_NOT_LAYERS = {"QuantizeLinear", "DequantizeLinear", "Cast", "Constant", "If", "Loop", "Scan"}
_NAMES = {code: name for name, code in FLOAT_CODES.items()}


def set_precisions(file: OnnxInput, rules: Sequence[str], folder: Path) -> tuple[OnnxInput, list[str]]:
    """Write a copy of ``file`` to ``folder`` whose layers have the types of ``rules``.

    Args:
        rules: ``pattern:precision``; a pattern is matched against a node's name and its torch module. The last rule
            that matches a node is used.

    Returns:
        The copy, and notes on layers that were not changed.

    Raises:
        EngineError: a rule matches no layer, or only quantized ones.
    """
    model = onnx.load(str(file.path))
    quantized = {layer.name for layer in file.layers if layer.format}
    types = _types(model.graph, rules, quantized)
    notes = []
    if count := sum(1 for name in types if name in quantized):
        notes.append(f"layers_precision did not change {count} quantized layers")
    _Retyper(model, file).run({name: code for name, code in types.items() if name not in quantized})
    path = folder / file.path.name
    save(model, path)
    return read_onnx(path), notes


def precisions_of(rules: Sequence[str]) -> list[str]:
    """Return the types in ``rules``."""
    return list(dict.fromkeys(_split(rule)[1] for rule in rules))


def _split(rule: str) -> tuple[str, str]:
    pattern, _, precision = rule.rpartition(":")
    return pattern.strip(), precision.strip().lower()


def _types(graph: GraphProto, rules: Sequence[str], quantized: set[str]) -> dict[str, int]:
    """Return ONNX's number of the type by name of the node."""
    types: dict[str, int] = {}
    problems = []
    names = {node.name: {node.name, module_of(node)} for node in graph.node if node.op_type not in _NOT_LAYERS}
    for i, (pattern, precision) in enumerate(map(_split, rules)):
        matched = [name for name, known in names.items() if any(fnmatch.fnmatchcase(text, pattern) for text in known)]
        where = f"{_WHERE}[{i}]"
        if not matched:
            every = sorted(set().union(*names.values()) - {""})
            close = difflib.get_close_matches(pattern, every, n=3, cutoff=0.4) or every[:3]
            problems.append(Problem(f"no layer matches {pattern!r}", where, f"There are {', '.join(close)}, ..."))
        elif all(name in quantized for name in matched):
            hint = "Leave it out of quantize.layers and export again."
            problems.append(Problem(f"{pattern!r} matches only quantized layers, which compute in 8 bits", where, hint))
        types.update(dict.fromkeys(matched, FLOAT_CODES[precision]))
    if problems:
        raise EngineError(*problems)
    return types


class _Retyper:
    """Changes the types of nodes of one graph."""

    def __init__(self, model: ModelProto, file: OnnxInput) -> None:
        self._graph = model.graph
        # Without the weights: they are not needed, and inference fails for models above protobuf's 2 GiB.
        typed = onnx.shape_inference.infer_shapes(file.model).graph
        values = [*typed.value_info, *typed.input, *typed.output]
        self._types = {value.name: value.type.tensor_type.elem_type for value in values}
        self._types |= {tensor.name: tensor.data_type for tensor in typed.initializer}
        self._weights = {tensor.name: tensor for tensor in model.graph.initializer}
        self._ready: dict[tuple[str, int], str] = {}  # a value in another type -> its name

    def run(self, types: dict[str, int]) -> None:
        """Retype the nodes that ``types`` names, and cast what they exchange with others."""
        nodes: list[NodeProto] = []
        for node in self._graph.node:
            before, after = self._retype(node, types[node.name]) if node.name in types else ([], [])
            nodes += [*before, node, *after]
        used = {name for node in nodes for name in node.input} | {value.name for value in self._graph.output}
        replace_entries(self._graph.node, nodes)
        del self._graph.value_info[:]
        replace_entries(self._graph.initializer, [t for t in self._graph.initializer if t.name in used])

    def _retype(self, node: NodeProto, code: int) -> tuple[list[NodeProto], list[NodeProto]]:
        """Change ``node`` in place; return the casts to insert before and after it."""
        before: list[NodeProto] = []
        after: list[NodeProto] = []
        fixed = ALWAYS_FLOAT.get(node.op_type, ())
        floats = [i for i, name in enumerate(node.input) if i not in fixed and self._types.get(name) in _NAMES]
        if all(self._types[node.input[i]] == code for i in floats):
            return [], []
        for i in floats:
            name = node.input[i]
            if self._types[name] != code:
                node.input[i] = self._converted(name, code, before)
        for i, name in enumerate(node.output):
            old = self._types.get(name)
            if old in _NAMES and old != code:
                node.output[i] = self._ready[name, code] = f"{name}.{_NAMES[code]}"
                after.append(_cast(node.output[i], name, old))
        return before, after

    def _converted(self, name: str, code: int, before: list[NodeProto]) -> str:
        if (name, code) not in self._ready:
            made = self._ready[name, code] = f"{name}.{_NAMES[code]}"
            if name in self._weights:
                converted = onnx.numpy_helper.from_array(as_type(self._weights[name], code), made)
                self._graph.initializer.append(converted)
            else:
                before.append(_cast(name, made, code))
        return self._ready[name, code]


def _cast(source: str, target: str, code: int) -> NodeProto:
    return helper.make_node(
        "Cast", [source], [target], name=f"cast.{source}.{TensorProto.DataType.Name(code)}", to=code
    )
