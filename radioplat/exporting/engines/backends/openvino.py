"""Backend openvino: write the graph in OpenVINO's own format, for CPUs.

The file is the length of the XML (8 bytes, little endian), the XML and the weights. What depends on the CPU is chosen
when the file is opened.
"""

from __future__ import annotations

import statistics
import struct
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from radioplat.common.cpu_threads import UNITS, cpu_name, has_int8_units
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
from radioplat.exporting.qdq.int8_overflow import without_overflow
from radioplat.exporting.qdq.unsigned import make_unsigned
from radioplat.spec.resolved.number_formats import ACTIVATIONS, FLOATS

UNSUPPORTED = NOT_FOR_CPUS | {
    "layers_precision": "Remove it; OpenVINO computes all that is not quantized in one float type, or use "
    "gen_trt_engine.backend=onnxruntime.",
}
# Its names of number formats, and ours.
_FORMATS = {"f32": "fp32", "f16": "fp16", "bf16": "bf16", "i8": "int8", "u8": "int8"}
_HINTS = {"fp32": "f32", "fp16": "f16", "bf16": "bf16"}
_FACTS = ("layerType", "runtimePrecision", "outputPrecisions", "originalLayersNames", "primitiveType")
_PRODUCTS = ("Convolution", "Deconvolution", "FullyConnected", "MatMul")
_NO_WORK = ("Const", "Input", "Output")
_ATTENTION = ("ScaledDotProductAttention", "MHA")
_ROUNDS, _CALLS = 12, 5  # of measuring each float type
_WORTH = 0.97  # a type must gain 3 % to take the place of fp32
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
    notes = [
        f"it computes in fp32: this CPU does not compute in {name} itself"
        for name in data_types
        if name in ("fp16", "bf16") and name not in native_floats(openvino)
    ]
    try:
        model = openvino.Core().read_model(str(file.path))
        if "int8" in data_types:
            changed = onnx.load(str(file.path))
            notes += _for_this_cpu(changed)
            model = openvino.Core().read_model(changed.SerializeToString(), b"")
        images = openvino.Dimension(batch[0], batch[2]) if batch[0] != batch[2] else batch[0]
        precision, rest = precision_hint(data_types), None
        if set(data_types) & set(ACTIVATIONS):
            allowed = _rest_types(openvino, request.float_type or file.float_type)
            precision, milliseconds = fastest_rest(openvino, model.clone(), [batch[1], *shape], allowed)
            rest = {"precision": precision, "cpu": cpu_name(UNITS), "milliseconds": milliseconds}
            times = ", ".join(f"{name} {value:.3g} ms" for name, value in milliseconds.items())
            why = f"which is fastest ({times})" if times else "the only float type that it may be in"
            notes.append(f"what is not quantized is computed in {precision} on this CPU, {why}")
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
        rest=rest,
        notes=notes,
    )


def _for_this_cpu(model: onnx.ModelProto) -> list[str]:
    """Change the integers of a file with INT8, in place; return a note on each change."""
    notes = []
    if count := make_unsigned(model):
        notes.append(f"{count} activations that are never negative are 0 to 255 instead of 0 to 127, in finer steps")
    if not has_int8_units() and (layers := without_overflow(model)):
        notes.append(
            f"weights of {layers} layers have 7 bits: this CPU has no AVX512-VNNI, AVX-VNNI or AMX, and its INT8 "
            "products of 8 bits overflow; build the engine again on a CPU that has, for 8"
        )
    return notes


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


def precision_hint(data_types: list[str], rest: dict[str, Any] | None = None) -> str:
    """Return the float type to compute in; without a hint OpenVINO takes bf16 where the CPU has AMX.

    Args:
        data_types: of the file.
        rest: what :func:`build` measured for a quantized file, from its record; of use on the same kind of CPU alone.
            On another one it is bf16 with AMX, else fp32.
    """
    if set(data_types) & set(ACTIVATIONS):
        name = cpu_name(UNITS)
        if rest is not None and rest["cpu"] == name:
            return str(rest["precision"])
        return "bf16" if "amx_bf16" in name else "fp32"
    return next((name for name in ("bf16", "fp16") if name in data_types), "fp32")


def native_floats(openvino: Any) -> list[str]:  # noqa: ANN401
    """Return the float types that this CPU multiplies itself; OpenVINO computes the others in fp32."""
    able = openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    return [name for name in _HINTS if name == "fp32" or name.upper() in able]


def _rest_types(openvino: Any, stored: str | None) -> list[str]:  # noqa: ANN401
    """Return the float types that a quantized file may be computed in on this CPU.

    fp16 is one of them only for a file in fp16: the export writes another type where a value overflows fp16.

    Args:
        stored: float type of the user's file.
    """
    return [name for name in native_floats(openvino) if name != "fp16" or stored == "fp16"]


def fastest_rest(
    openvino: Any,  # noqa: ANN401
    model: Any,  # noqa: ANN401
    shape: list[int],
    types: list[str],
) -> tuple[str, dict[str, float]]:
    """Return the float type in which what is not quantized takes the least time, and the milliseconds in each.

    Of fp32 alone nothing is measured, and there are no milliseconds. CPUs with bf16 differ:
    without AMX a ViT-Tiny in INT8 takes 1.6 to 1.7 times as long with the rest in bf16 on a Xeon, and less than with
    the rest in fp32 on an EPYC (``benchmarks.engines``).

    Args:
        shape: ``[B, C, H, W]`` to measure with; the model gets it.
        types: to choose from.
    """
    model.reshape(shape)
    images = np.random.default_rng(0).random(shape, dtype=np.float32)
    requests = {name: compile_model(openvino, model, name).create_infer_request() for name in types}
    rounds: dict[str, list[float]] = {name: [] for name in requests}
    for _ in range(_ROUNDS if len(requests) > 1 else 0):
        for name, request in requests.items():
            rounds[name].append(_milliseconds(request, images))
    # The least round: other programs on the machine make some rounds longer, for one type or the other.
    times = {name: min(values) for name, values in rounds.items() if values}
    best = min(times, key=lambda name: times[name], default="fp32")
    return (best if best == "fp32" or times[best] < _WORTH * times["fp32"] else "fp32"), times


def _milliseconds(request: Any, images: np.ndarray) -> float:  # noqa: ANN401
    """Return the median of some calls, after one that does not count."""
    times = []
    for _ in range(_CALLS + 1):
        start = time.perf_counter()
        request.infer([images], share_inputs=True, share_outputs=True)
        times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times[1:])


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
