"""Backend onnxruntime: write the graph optimized for CPUs.

Only optimizations that are the same on every CPU (level "extended") are saved; those that depend on the CPU follow when
the file is opened.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from pathlib import Path

import onnx
from onnx import ModelProto, NodeProto, helper

from radioplat.errors import EngineError
from radioplat.exporting.engines.interface import (
    NOT_FOR_CPUS,
    SECTION,
    BuildRequest,
    BuiltEngine,
    Kernel,
    refuse_unsupported,
    resolve_shape,
)
from radioplat.exporting.engines.onnx_input import OnnxInput
from radioplat.exporting.onnx.precision import FLOAT_CODES
from radioplat.exporting.qdq.int8_overflow import overflow_warning

UNSUPPORTED = NOT_FOR_CPUS
# Operations of an optimized graph that multiply, with their data type; None: the type of their weights.
_PRODUCTS = {
    **dict.fromkeys(("Conv", "FusedConv", "ConvTranspose", "Gemm", "FusedGemm", "MatMul", "FusedMatMul"), None),
    **dict.fromkeys(("QLinearConv", "QLinearMatMul", "QGemm", "MatMulIntegerToFloat", "MatMulInteger"), "int8"),
    **dict.fromkeys(("ConvInteger", "DynamicQuantizeMatMul"), "int8"),
}
# Of those, products that write floats; QGemm does without the scale of an output, its eighth input.
_WRITE_FLOATS = ("MatMulIntegerToFloat", "DynamicQuantizeMatMul", "QAttention")
_WRITE_SUMS = ("MatMulInteger", "ConvInteger")
_ROUNDING = ("QuantizeLinear", "DynamicQuantizeLinear")
# Prefix of casts that it inserts around operations without a kernel.
_INSERTED = "InsertedPrecisionFreeCast_"
_ATTENTION = ("Attention", "MultiHeadAttention", "QAttention")
_UNKNOWN_OP = re.compile(
    r"(?P<op>[\w.:]+)\(-?\d+\) is not a registered function/op|No Op registered for (?P<other>\w+)"
)


def build(file: OnnxInput, request: BuildRequest, data_types: list[str]) -> BuiltEngine:
    """Optimize the graph by onnxruntime and write it into one file.

    Raises:
        EngineError: an unsupported field, or an operation or type without a CPU kernel.
    """
    refuse_unsupported(request, "onnxruntime", UNSUPPORTED)
    if "bf16" in data_types:
        field = "data_type" if request.config.data_type.strip().lower() == "bf16" else "layers_precision"
        hint = f"Use fp32 or fp16, or another {SECTION}.backend."
        raise EngineError("onnxruntime has no bf16 kernels for CPUs", where=f"{SECTION}.tensorrt.{field}", hint=hint)
    import onnxruntime

    shape, batch = resolve_shape(file.image_shape, request)
    # Its fused quantized kernels are for integers; with FP8 the Q/DQ nodes must not be fused.
    level = "basic" if "fp8" in data_types else "extended"
    with tempfile.TemporaryDirectory(prefix="radioplat-") as scratch:
        optimized = Path(scratch) / "optimized.onnx"
        open_session(file.path, level, save_to=optimized, verbose=request.verbose)
        data = optimized.read_bytes()
    notes = []
    kernels = _kernels(graph := onnx.load_from_string(data))
    if any(kernel.data_type == "int8" for kernel in kernels or ()) and (warning := overflow_warning(graph)):
        notes.append(warning)
    if "fp16" in data_types and not any(kernel.data_type == "fp16" for kernel in kernels or ()):
        notes.append("onnxruntime has no fp16 kernels for this CPU and computes in fp32")
    return BuiltEngine(
        data=data,
        library="onnxruntime",
        version=onnxruntime.__version__,
        targets=[],
        input_shape=shape,
        batch=batch,
        kernels=kernels,
        requantizing=sum(node.op_type in _ROUNDING for node in graph.graph.node),
        notes=notes,
    )


def open_session(
    source: Path | bytes, level: str, *, save_to: Path | None = None, verbose: bool = False, times: str = ""
):
    """Return an ``InferenceSession`` on the CPU.

    Args:
        level: of optimization: ``disable_all``, ``basic``, ``extended`` or ``all``.
        save_to: path for the optimized graph.
        times: prefix of the path to write the times of all nodes to, at the session's ``end_profiling``; none if empty.

    Raises:
        EngineError: onnxruntime refuses the graph.
    """
    import onnxruntime
    import torch

    options = onnxruntime.SessionOptions()
    name = level.upper() if level.startswith("disable") else f"ENABLE_{level.upper()}"
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_{name}")
    options.log_severity_level = 1 if verbose else 3
    options.intra_op_num_threads = torch.get_num_threads()
    if times:
        options.enable_profiling, options.profile_file_prefix = True, times
    if save_to is not None:
        options.optimized_model_filepath = str(save_to)
    graph = str(source) if isinstance(source, Path) else source
    try:
        return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its errors have no common base class
        raise _refused(error, graph if isinstance(graph, str) else "") from error


def _refused(error: Exception, where: str) -> EngineError:
    text = " ".join(str(error).split())[:400]
    if unknown := _UNKNOWN_OP.search(text):
        operation = unknown["op"] or unknown["other"]
        hint = "Export the student without this operation."
        return EngineError(f"onnxruntime does not support the operation {operation}", where=where, hint=hint)
    hint = "Use gen_trt_engine.backend=tensorrt_rtx." if "NOT_IMPLEMENTED" in text or "Type Error" in text else ""
    return EngineError(f"onnxruntime refuses the graph: {text}", where=where, hint=hint)


def _kernels(model: ModelProto) -> list[Kernel] | None:
    """Return the kernels of the optimized graph. For types without a CPU kernel onnxruntime has inserted casts."""
    names = {code: name for name, code in FLOAT_CODES.items()}
    types = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    most = Counter(names[code] for code in types.values() if code in names).most_common(1)
    cast = {n.output[0]: helper.get_attribute_value(n.attribute[0]) for n in model.graph.node if n.op_type == "Cast"}
    default = "fp32" if any(name.startswith(_INSERTED) for name in cast) or not most else most[0][0]
    types |= cast
    kernels = []
    for node in model.graph.node:
        stated = [names[types[name]] for name in node.input if types.get(name) in names]
        if node.op_type in _ATTENTION:
            kind, data_type = "attention", "int8" if node.op_type == "QAttention" else default
        elif node.op_type in _PRODUCTS:
            kind, data_type = "conv_gemm", _PRODUCTS[node.op_type] or (stated[0] if stated else default)
        else:
            continue
        named = (node.name,) if node.name else ()
        kernels.append(Kernel(node.name or node.output[0], kind, data_type, named, _writes(node, data_type)))
    return kernels or None


def _writes(node: NodeProto, data_type: str) -> str:
    """Return the type of a product's output."""
    if data_type != "int8":
        return data_type
    if node.op_type in _WRITE_SUMS:
        return "int32"
    floats = node.op_type in _WRITE_FLOATS or (node.op_type == "QGemm" and not "".join(node.input[7:8]))
    return "fp32" if floats else data_type
