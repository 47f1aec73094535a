"""ONNX files of `export` as encoders, run by onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import ModelProto, TensorProto
from onnx.external_data_helper import ExternalDataInfo, uses_external_data

from radioplat.errors import EngineError
from radioplat.evaluation.models.file_interface import FileInterface
from radioplat.exporting.onnx.flat_student import INPUT
from radioplat.exporting.onnx.precision import stored_data_type
from radioplat.models.features import Features
from radioplat.spec.resolved.number_formats import DATA_TYPES, QUANTIZED

# Unsigned integers occur in files of other exporters.
_QUANTIZED = {getattr(TensorProto, DATA_TYPES[name].onnx_type): name for name in QUANTIZED}
_QUANTIZED |= {TensorProto.UINT8: "uint8", TensorProto.UINT4: "uint4"}


class OnnxModel:
    """An ONNX file with the interface that ``export`` writes: ``images`` in [0, 1], ``summary``, ``spatial``, heads.

    The file runs without onnxruntime's graph optimizations, which change the results of a quantized graph.

    Args:
        where: the field that names it, for errors.
        threads: of one run.
        device: where features are returned.

    Attributes:
        reason: why it cannot run on this machine; empty where it can.
        interface: of its inputs and outputs.
        kind: ``ONNX fp32``; with quantizers their formats.
        bytes: on disk, with external weights.

    Raises:
        EngineError: no ONNX file, or one with another interface.
    """

    def __init__(self, path: Path, where: str, threads: int, device: str) -> None:
        self.path, self._where, self._device = path, where, device
        model = _read(path, where)
        self._batch, _, *sides = _input_shape(model, where)
        self.interface = FileInterface({v.name: _dimensions(v) for v in model.graph.output}, sides, where)
        self.kind = f"ONNX {'/'.join(_formats(model)) or stored_data_type(model) or 'fp32'}"
        self.bytes = sum(file.stat().st_size for file in (path, *_external_files(model, path, where)))
        self.reason = ""
        try:
            self._session = _session(path, threads)
        except Exception as error:  # onnxruntime's exceptions have no other common base class
            self.reason = f"onnxruntime cannot run the file here: {_line(error)}"

    def encode(self, images: torch.Tensor) -> Features:
        """Compute fp32 features of uint8 ``[B, 3, H, W]``; outputs of heads are in ``named``, as ``<teacher>.<kind>``.

        Raises:
            EngineError: onnxruntime fails.
        """
        pixels = images.numpy(force=True).astype(np.float32) / 255
        size = self._batch if isinstance(self._batch, int) else len(pixels)
        names, parts = self.interface.outputs, []
        for start in range(0, len(pixels), size):
            part = pixels[start : start + size]
            padded = np.concatenate([part, np.zeros((size - len(part), *part.shape[1:]), np.float32)])
            try:
                parts.append([output[: len(part)] for output in self._session.run(names, {INPUT: padded})])
            except Exception as error:
                raise EngineError(f"onnxruntime cannot run the file: {_line(error)}", where=self._where) from error
        whole = [np.concatenate(each) for each in zip(*parts, strict=True)]
        return self.interface.features(dict(zip(names, whole, strict=True)), self._device)


def _read(path: Path, where: str) -> ModelProto:
    try:
        model = onnx.load(str(path), load_external_data=False)
    except Exception as error:  # protobuf's exception class depends on its implementation
        raise EngineError(f"{path} is not an ONNX file: {_line(error)}", where=where) from error
    if not model.graph.node:
        raise EngineError(f"{path} is not an ONNX file: it holds no graph", where=where)
    return model


def _input_shape(model: ModelProto, where: str) -> list[int | str]:
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in weights]
    shape = _dimensions(inputs[0]) if len(inputs) == 1 else []
    floats = len(inputs) == 1 and inputs[0].type.tensor_type.elem_type == TensorProto.FLOAT
    if not floats or inputs[0].name != INPUT or len(shape) != 4 or shape[1] != 3:
        present = ", ".join(f"{value.name} {_dimensions(value)}" for value in inputs) or "none"
        raise EngineError(
            f"the only input must be `{INPUT}`, float32 [B, 3, H, W] in [0, 1]; this file has {present}",
            where=where,
            hint="Export the student by `radioplat export`.",
        )
    return shape


def _dimensions(value: onnx.ValueInfoProto) -> list[int | str]:
    """Return sizes of fixed dimensions and names of open ones."""
    return [d.dim_value if d.HasField("dim_value") else d.dim_param for d in value.type.tensor_type.shape.dim]


def _formats(model: ModelProto) -> list[str]:
    """Return the formats of quantized tensors, sorted; without the int32 of biases."""
    stored = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    types: set[int] = set()
    for node in model.graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            types |= {stored[name] for name in (node.input[0], *node.input[2:3]) if name in stored}
            types |= {a.i for a in node.attribute if a.name == "output_dtype"}
    return sorted({_QUANTIZED[code] for code in types if code in _QUANTIZED})


def _external_files(model: ModelProto, path: Path, where: str) -> list[Path]:
    """Return the files with external weights of ``path``."""
    tensors = [tensor for tensor in model.graph.initializer if uses_external_data(tensor)]
    files = [path.parent / name for name in sorted({ExternalDataInfo(tensor).location for tensor in tensors})]
    for file in files:
        if not file.is_file():
            raise EngineError(f"its weights are missing: {file}", where=where, hint="They belong beside the ONNX file.")
    return files


def _session(path: Path, threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4  # do not also log errors: they are raised
    options.intra_op_num_threads = threads
    options.add_session_config_entry(
        "session.intra_op.allow_spinning", "0"
    )  # waiting threads do not spin, so that decoders and other models can use the cores
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
