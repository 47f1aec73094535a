"""Backend openvino: write the graph in OpenVINO's own format, for CPUs.

The file is the length of the XML (8 bytes, little endian), the XML and the weights. What depends on the CPU is chosen
when the file is opened.
"""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path
from typing import Any

from radioplat.common.cpu_threads import cpu_name
from radioplat.errors import EngineError
from radioplat.exporting.engines.backends.signal_stack import kept_signal_stack
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
from radioplat.spec.resolved.number_formats import ACTIVATIONS, FLOATS

UNSUPPORTED = NOT_FOR_CPUS
# Its names of number formats, and ours.
_FORMATS = {"f32": "fp32", "f16": "fp16", "bf16": "bf16", "i8": "int8", "u8": "int8"}
_HINTS = {"fp32": "f32", "fp16": "f16", "bf16": "bf16"}
_FACTS = ("layerType", "runtimePrecision", "outputPrecisions", "originalLayersNames", "primitiveType")
_PRODUCTS = ("Convolution", "Deconvolution", "FullyConnected", "MatMul")
_NO_WORK = ("Const", "Input", "Output")
_ATTENTION = ("ScaledDotProductAttention", "MHA")
_LENGTH = struct.Struct("<Q")


def build(file: OnnxInput, request: BuildRequest, data_types: list[str]) -> BuiltEngine:
    """Convert the graph and write it into one file.

    Raises:
        EngineError: an unsupported field, OpenVINO is not installed, or it refuses the graph.
    """
    refuse_unsupported(request, "openvino", UNSUPPORTED)
    if "fp8" in data_types:
        hint = f"Use int8, or another {SECTION}.backend."
        raise EngineError("OpenVINO has no FP8 kernels for CPUs", where=f"{SECTION}.tensorrt.data_type", hint=hint)
    openvino = load_openvino()
    shape, batch = resolve_shape(file.image_shape, request)
    precision = precision_hint(data_types)
    try:
        model = openvino.Core().read_model(str(file.path))
        images = openvino.Dimension(batch[0], batch[2]) if batch[0] != batch[2] else batch[0]
        model.reshape(openvino.PartialShape([images, *shape]))
        facts = layer_facts(compile_model(openvino, model, precision))
        with tempfile.TemporaryDirectory(prefix="radioplat-") as scratch:
            path = Path(scratch) / "model.xml"
            openvino.save_model(model, str(path), compress_to_fp16=False)
            graph, weights = path.read_bytes(), path.with_suffix(".bin").read_bytes()
    except Exception as error:  # its errors have no common base class
        text = " ".join(str(error).split())[:400]
        raise EngineError(f"OpenVINO refuses the graph: {text}", where=str(file.path)) from error
    return BuiltEngine(
        data=_LENGTH.pack(len(graph)) + graph + weights,
        library="openvino",
        version=openvino.__version__,
        targets=[],
        input_shape=shape,
        batch=batch,
        kernels=_kernels(facts),
        layers=sum(row["layerType"] not in _NO_WORK for row in facts.values()),
        requantizing=_requantizing(facts),
        notes=[f"what is not quantized is computed in {precision}"],
    )


def load_openvino() -> Any:  # noqa: ANN401
    """Import OpenVINO.

    Raises:
        EngineError: it is not installed.
    """
    try:
        import openvino
    except ImportError as error:
        hint = "pip install 'radioplat[openvino]'"
        raise EngineError(f"openvino cannot be imported: {error}", where=f"{SECTION}.backend", hint=hint) from None
    return openvino


def precision_hint(data_types: list[str]) -> str:
    """Return the float type to compute in; without a hint OpenVINO takes bf16 where the CPU has AMX.

    Beside INT8 it is bf16 with AMX, else fp32: without AMX a ViT-Tiny takes 1.6 to 1.7 times as long in
    fp16 or bf16 (``benchmarks.engines``).
    """
    if set(data_types) & set(ACTIVATIONS):
        return "bf16" if "amx_bf16" in cpu_name(["amx_bf16"]) else "fp32"
    return next((name for name in ("bf16", "fp16") if name in data_types), "fp32")


def compile_model(openvino: Any, model: Any, precision: str, timed: bool = False) -> Any:  # noqa: ANN401
    """Prepare a model for this CPU, with torch's number of threads; ``timed``: it measures its layers."""
    import torch

    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "INFERENCE_PRECISION_HINT": _HINTS[precision],
        "PERF_COUNT": timed,
    }
    with kept_signal_stack():
        return openvino.Core().compile_model(model, "CPU", settings)


def unpacked(data: bytes) -> tuple[bytes, bytes]:
    """Return the XML and the weights of a file of this backend.

    Raises:
        ValueError: it is none, or is cut short.
    """
    (length,) = _LENGTH.unpack_from(data) if len(data) >= _LENGTH.size else (len(data),)
    end = _LENGTH.size + length
    if not data[_LENGTH.size : end].lstrip().startswith(b"<?xml") or end > len(data):
        raise ValueError("this is no file of the backend openvino")
    return data[_LENGTH.size : end], data[end:]


def layer_facts(compiled: Any) -> dict[str, dict[str, str]]:  # noqa: ANN401
    """Return ``layerType``, ``runtimePrecision``, ``outputPrecisions``, ... of each layer, and ``reads``, by name."""
    facts: dict[str, dict[str, str]] = {}
    for operation in compiled.get_runtime_model().get_ordered_ops():
        info = operation.get_rt_info()
        row = {key: _text(info[key]) for key in _FACTS if key in info}
        if operation.get_input_size():
            before = operation.input(0).get_source_output().get_node().get_friendly_name()
            row["reads"] = facts.get(before, {}).get("outputPrecisions", "")
        facts[operation.get_friendly_name()] = row
    return facts


def our_format(names: str) -> str:
    """Return our name of the first of OpenVINO's number formats ``names``, which commas separate."""
    first = names.partition(",")[0].strip().lower()
    return _FORMATS.get(first, first)


def _kernels(layers: dict[str, dict[str, str]]) -> list[Kernel] | None:
    """Return the kernels that multiply, with the nodes of the ONNX file that each computes."""
    kernels = []
    for friendly, facts in layers.items():
        if facts["layerType"].startswith((*_PRODUCTS, *_ATTENTION)):
            named = tuple(name for name in facts.get("originalLayersNames", "").split(",") if name)
            kind = "attention" if facts["layerType"].startswith(_ATTENTION) else "conv_gemm"
            computes, writes = (our_format(facts.get(key, "")) for key in ("runtimePrecision", "outputPrecisions"))
            kernels.append(Kernel(friendly, kind, computes, named, writes))
    return kernels or None


def _requantizing(layers: dict[str, dict[str, str]]) -> int:
    """Return the number of layers that read floats, write 8 bits, and multiply nothing."""
    rest = [facts for facts in layers.values() if not facts["layerType"].startswith((*_PRODUCTS, *_ATTENTION))]
    types = [[our_format(facts.get(key, "")) for key in ("reads", "outputPrecisions")] for facts in rest]
    return sum(reads in FLOATS and writes in ACTIVATIONS for reads, writes in types)


def _text(value: Any) -> str:  # noqa: ANN401
    return str(getattr(value, "value", value))
