"""A student that left as an ONNX file, run on onnxruntime as an encoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import ModelProto, TensorProto
from onnx.external_data_helper import ExternalDataInfo, uses_external_data

from radioplat.errors import EngineError
from radioplat.evaluate.subject import KINDS
from radioplat.export.flat_student import INPUT, LOGITS
from radioplat.export.precision import stored_data_type
from radioplat.models.features import Features

_QUANTIZED = {
    TensorProto.INT8: "int8",
    TensorProto.UINT8: "uint8",
    TensorProto.INT4: "int4",
    TensorProto.UINT4: "uint4",
    TensorProto.FLOAT8E4M3FN: "fp8",
}


class OnnxModel:
    """An ONNX file with the interface that ``export`` writes: ``images`` in [0, 1], ``summary``, ``spatial``, heads.

    The file is run as it was written, without onnxruntime's rewrites: those change what a quantized graph says.

    Args:
        where: the field that names it, for errors.
        threads: that one run may take.
        device: that features are moved to.

    Attributes:
        reason: why it cannot run on this machine; empty where it can.
        spoken: width of its heads, by teacher and kind.
        kind: ``ONNX fp32``; with quantizers their formats.
        bytes: on disk, weights beside it included.

    Raises:
        EngineError: no ONNX file, or one with another interface.
    """

    def __init__(self, path: Path, where: str, threads: int, device: str) -> None:
        self.path, self._where, self._device = path, where, device
        model = _read(path, where)
        self._shape = _input_shape(model, where)
        widths = {value.name: _dimensions(value)[-1:] for value in model.graph.output}
        _require_outputs(list(widths), where)
        names = [name.rpartition(".") for name in widths]
        self.spoken = {
            (teacher, kind): int(width[0])
            for (teacher, _, kind), width in zip(names, widths.values(), strict=True)
            if teacher and kind in KINDS and width and isinstance(width[0], int)
        }
        self._outputs = [*KINDS, *(f"{t}.{k}" for t, k in self.spoken), *([LOGITS] if LOGITS in widths else [])]
        self.kind = f"ONNX {'/'.join(_formats(model)) or stored_data_type(model) or 'fp32'}"
        self.bytes = sum(file.stat().st_size for file in (path, *_beside(model, path, where)))
        self.reason = ""
        try:
            self._session = _session(path, threads)
        except Exception as error:  # its classes share no base but Exception
            self.reason = f"onnxruntime cannot run the file here: {_line(error)}"

    def size_for(self, asked: int | None, usual: int) -> int:
        """Pixels a side of the images that it is shown: the file's own; ``asked``, else ``usual``, if it takes any.

        Raises:
            EngineError: the file takes images that are not square, or of another size than was asked for.
        """
        sides = [side for side in self._shape[2:] if isinstance(side, int)]
        if len(set(sides)) > 1:
            raise EngineError(f"it takes {sides[0]} x {sides[1]} pixels, and evaluate shows squares", where=self._where)
        if sides and asked and sides[0] != asked:
            message = f"it takes {sides[0]} pixels a side, and dataset.val_img_size is {asked}"
            raise EngineError(message, where=self._where, hint="Leave dataset.val_img_size out, or export again.")
        return sides[0] if sides else asked or usual

    def encode(self, images: torch.Tensor) -> Features:
        """uint8 ``[B, 3, H, W]`` to fp32 features; heads are in ``named``, as ``<teacher>.<kind>``.

        Raises:
            EngineError: onnxruntime gives a reason.
        """
        pixels = images.numpy(force=True).astype(np.float32) / 255
        size = self._shape[0] if isinstance(self._shape[0], int) else len(pixels)
        parts = []
        for start in range(0, len(pixels), size):
            part = pixels[start : start + size]
            padded = np.concatenate([part, np.zeros((size - len(part), *part.shape[1:]), np.float32)])
            try:
                parts.append([found[: len(part)] for found in self._session.run(self._outputs, {INPUT: padded})])
            except Exception as error:
                raise EngineError(f"onnxruntime cannot run the file: {_line(error)}", where=self._where) from error
        whole = (torch.from_numpy(np.concatenate(each)).float().to(self._device) for each in zip(*parts, strict=True))
        found = dict(zip(self._outputs, whole, strict=True))
        return Features(found.pop("summary"), found.pop("spatial"), found)


def _read(path: Path, where: str) -> ModelProto:
    try:
        model = onnx.load(str(path), load_external_data=False)
    except Exception as error:  # protobuf's class depends on its implementation
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
        told = ", ".join(f"{value.name} {_dimensions(value)}" for value in inputs) or "none"
        raise EngineError(
            f"the only input must be `{INPUT}`, float32 [B, 3, H, W] in [0, 1]; this file has {told}",
            where=where,
            hint="Export the student by `radioplat export`.",
        )
    return shape


def _require_outputs(names: list[str], where: str) -> None:
    if missing := [kind for kind in KINDS if kind not in names]:
        raise EngineError(
            f"the file lacks the outputs {', '.join(missing)}; it has {', '.join(names) or 'none'}",
            where=where,
            hint="Export the student by `radioplat export`.",
        )


def _dimensions(value: onnx.ValueInfoProto) -> list[int | str]:
    """Numbers where they are fixed, names where they are open."""
    return [d.dim_value if d.HasField("dim_value") else d.dim_param for d in value.type.tensor_type.shape.dim]


def _formats(model: ModelProto) -> list[str]:
    """Of what is dequantized, sorted; biases, whose int32 follows from the others, aside."""
    stored = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    types: set[int] = set()
    for node in model.graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            types |= {stored[name] for name in (node.input[0], *node.input[2:3]) if name in stored}
            types |= {a.i for a in node.attribute if a.name == "output_dtype"}
    return sorted({_QUANTIZED[code] for code in types if code in _QUANTIZED})


def _beside(model: ModelProto, path: Path, where: str) -> list[Path]:
    """Files of weights that ``path`` names."""
    tensors = [tensor for tensor in model.graph.initializer if uses_external_data(tensor)]
    files = [path.parent / name for name in sorted({ExternalDataInfo(tensor).location for tensor in tensors})]
    for file in files:
        if not file.is_file():
            raise EngineError(f"its weights are missing: {file}", where=where, hint="They lie beside the ONNX file.")
    return files


def _session(path: Path, threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4  # what goes wrong is raised, too
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
