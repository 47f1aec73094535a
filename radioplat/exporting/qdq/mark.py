"""How a traced student says where it rounds: one node of our own domain for each quantizer.

The tracer must not see Q/DQ: its optimizer would fold a pair on a weight into floats, and 8-bit floats have no place in
the operator set that it writes first. So it sees a mark, and what becomes of the marks is decided afterwards.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass

import onnx
import torch
from onnx import ModelProto, NodeProto
from torch import nn

from radioplat.exporting.qdq.graph import attribute
from radioplat.models.quantized import fake_quantize as _operator  # noqa: F401  (registers the operator)
from radioplat.models.quantized.fake_quantize import NumberFormat
from radioplat.models.quantized.quantizer import quantizers

DOMAIN, MARK = "radioplat", "FakeQuantize"
# Where torch's exporter writes down the modules that a node was traced in.
MODULES_NOTE = "pkg.torch.onnx.name_scopes"


@dataclass(frozen=True)
class Mark:
    """A place where a tensor is rounded.

    Attributes:
        node: the mark.
        module: name of the quantizer (``backbone.blocks.0.attn.qkv.input_quantizer``).
        axis: of the scales; -1 for one.
    """

    node: NodeProto
    module: str
    axis: int
    format: NumberFormat

    @property
    def layer(self) -> str:
        """Name of the module that the quantizer belongs to."""
        return self.module.rpartition(".")[0]


def settle_scales(module: nn.Module) -> None:
    """Have every quantizer's parameter be the positive scale that its operator divides by."""
    with torch.no_grad():
        for quantizer in quantizers(module).values():
            quantizer.scale.copy_(quantizer.settled_scale())


def translations() -> dict[Callable, Callable]:
    """What torch's exporter needs to write marks (``custom_translation_table``)."""
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
    """The marks in ``model``, in the order of its nodes."""
    found = [node for node in model.graph.node if node.op_type == MARK and node.domain == DOMAIN]
    return [_mark(node) for node in found]


def _mark(node: NodeProto) -> Mark:
    format = NumberFormat(attribute(node, "format", b"").decode())
    return Mark(node, module_of(node) or node.name, attribute(node, "axis", -1), format)


def module_of(node: NodeProto) -> str:
    """The student's module that ``node`` was traced in, as torch's exporter wrote it down; empty where it did not."""
    for entry in node.metadata_props:
        if entry.key == MODULES_NOTE:
            try:
                scopes = ast.literal_eval(entry.value)
            except (ValueError, SyntaxError):
                return ""
            # The last one is the operation itself; our exports have the student inside a module that flattens it.
            names = [str(scope) for scope in scopes[:-1] if scope] if isinstance(scopes, list) else []
            return names[-1].removeprefix("student.") if names else ""
    return ""
