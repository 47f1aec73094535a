"""Marks: nodes of domain ``radioplat`` in a traced graph, one for each quantizer.

The tracer must not write Q/DQ: its optimizer would fold the pair of a weight into floats, and the operator set that it
writes first has no 8-bit floats. So it writes marks, which are replaced by pairs or removed afterwards.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass

import onnx
import torch
from onnx import ModelProto, NodeProto

from radioplat.exporting.qdq.graph import attribute
from radioplat.models.quantized import fake_quantize as _operator  # noqa: F401  (registers the operator)
from radioplat.models.quantized.fake_quantize import NumberFormat

DOMAIN, MARK = "radioplat", "FakeQuantize"
# Metadata of torch's exporter: the modules that a node was traced in.
MODULES_NOTE = "pkg.torch.onnx.name_scopes"


@dataclass(frozen=True)
class Mark:
    """A position where a tensor is rounded.

    Attributes:
        node: the mark.
        module: name of the quantizer (``backbone.blocks.0.attn.qkv.input_quantizer``).
        axis: of the scales; -1 for a single one.
    """

    node: NodeProto
    module: str
    axis: int
    format: NumberFormat

    @property
    def layer(self) -> str:
        """Name of the module that the quantizer belongs to."""
        return self.module.rpartition(".")[0]


def translations() -> dict[Callable, Callable]:
    """Return the ``custom_translation_table`` by which torch's exporter writes marks."""
    import onnxscript

    schema = onnx.defs.OpSchema
    tensor, number = schema.FormalParameter, schema.Attribute
    known = schema(
        MARK,
        DOMAIN,
        1,
        inputs=[tensor("x", "T"), tensor("scale", "T")],
        outputs=[tensor("y", "T")],
        type_constraints=[("T", ["tensor(float)"], "")],
        attributes=[number("axis", schema.AttrType.INT), number("format", schema.AttrType.STRING)],
    )
    mark = onnxscript.values.Op(onnxscript.values.Opset(DOMAIN, 1), MARK, known)

    def translate(x, scale, axis: int, format: str):
        return mark(x, scale, axis=axis, format=format)

    return {torch.ops.radioplat.fake_quantize.default: translate}


def marks(model: ModelProto) -> list[Mark]:
    """Return the marks in ``model``, in the order of its nodes."""
    result = []
    for node in model.graph.node:
        if node.op_type == MARK and node.domain == DOMAIN:
            format = NumberFormat(attribute(node, "format", b"").decode())
            result.append(Mark(node, module_of(node) or node.name, attribute(node, "axis", -1), format))
    return result


def module_of(node: NodeProto) -> str:
    """Return the student's module that ``node`` was traced in; empty if torch's exporter did not write it."""
    for entry in node.metadata_props:
        if entry.key == MODULES_NOTE:
            try:
                scopes = ast.literal_eval(entry.value)
            except (ValueError, SyntaxError):
                return ""
            # The last one is the operation itself; the student is inside a module that flattens its outputs.
            names = [str(scope) for scope in scopes[:-1] if scope] if isinstance(scopes, list) else []
            return names[-1].removeprefix("student.") if names else ""
    return ""
