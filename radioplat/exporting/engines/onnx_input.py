"""The ONNX file of an engine: read, hash, and check it against the requested data type."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import GraphProto, ModelProto, TensorProto
from onnx.external_data_helper import ExternalDataInfo, uses_external_data

from radioplat.errors import EngineError
from radioplat.exporting.engines.interface import SECTION, WeightLayer
from radioplat.exporting.onnx.precision import stored_data_type
from radioplat.exporting.qdq.graph import Graph, shapes_of
from radioplat.exporting.qdq.graph_layers import Layer, block_of, find_layers
from radioplat.exporting.qdq.lint import stored_type
from radioplat.exporting.qdq.mark import module_of
from radioplat.spec.resolved.number_formats import ACTIVATIONS, DATA_TYPES, FLOATS, QUANTIZED, engine_type

ENGINE_TYPES = (*FLOATS, *ACTIVATIONS)
_FORMATS = {DATA_TYPES[name].onnx_type: name for name in QUANTIZED}
_WHERE = f"{SECTION}.onnx_file"
_AGAIN = "Use the file of `radioplat export`, or export again."
_TYPE = f"{SECTION}.tensorrt.data_type"


@dataclass(frozen=True)
class OnnxInput:
    """An ONNX file with one image input.

    Attributes:
        path: the file.
        model: its graph, without weights in external files.
        sha256: of the file and its external weight files.
        float_type: ``fp32``, ``fp16`` or ``bf16``, the type of most of its weights; None if it has no weights.
        layers: its convolutions and linear layers.
        inputs, outputs: shape by name; a dynamic side is given by its name.
    """

    path: Path
    model: ModelProto
    sha256: str
    float_type: str | None
    layers: list[WeightLayer]
    inputs: dict[str, list[int | str]]
    outputs: dict[str, list[int | str]]

    @property
    def formats(self) -> Counter[str]:
        """Number of quantized layers by format."""
        return Counter(layer.format for layer in self.layers if layer.format)

    @property
    def image_shape(self) -> list[int]:
        """``[B, 3, H, W]`` with -1 for dynamic sides.

        Raises:
            EngineError: there is another input, or it is not a batch of images.
        """
        shapes = list(self.inputs.values())
        if len(shapes) != 1 or len(shapes[0]) != 4:
            raise EngineError("the ONNX file must have one input, images [B, 3, H, W]", where=_WHERE)
        return [side if isinstance(side, int) and side > 0 else -1 for side in shapes[0]]


def read_onnx(path: Path) -> OnnxInput:
    """Read and check an ONNX file, without its external weights. (TensorRT's parser accepts any bytes.)

    Raises:
        EngineError: there is no such file, it is not an ONNX file, the file with its weights is missing or cut off, or
            an input or output is not float32.
    """
    if not path.is_file():
        raise EngineError(f"there is no ONNX file {path}", where=_WHERE, hint="Run `radioplat export` first.")
    try:
        model = onnx.load(str(path), load_external_data=False)
    except Exception as error:  # protobuf's class depends on its implementation
        raise EngineError(f"{path} is not an ONNX file: {error}", where=_WHERE, hint=_AGAIN) from error
    if not model.graph.node:
        raise EngineError(f"{path} is not an ONNX file: it has no graph", where=_WHERE, hint=_AGAIN)
    external = _check_weight_files(path, model)
    weights = {tensor.name for tensor in model.graph.initializer}
    for value in [v for v in [*model.graph.input, *model.graph.output] if v.name not in weights]:
        if value.type.tensor_type.elem_type != TensorProto.FLOAT:
            kind = TensorProto.DataType.Name(value.type.tensor_type.elem_type).lower()
            hint = "`radioplat export` writes float32 inputs and outputs at any export.data_type."
            raise EngineError(f"{value.name} of {path} is {kind}, not float32", where=_WHERE, hint=hint)
    inputs = {name: shape for name, shape in shapes_of(model.graph.input).items() if name not in weights}
    return OnnxInput(
        path=path,
        model=model,
        sha256=_digest([path, *external]),
        float_type=stored_data_type(model),
        layers=weight_layers(model),
        inputs=inputs,
        outputs=shapes_of(model.graph.output),
    )


def parse_engine_type(text: str) -> str:
    """Return a name of :data:`ENGINE_TYPES`, given in any case (TAO writes ``FP16``).

    Raises:
        EngineError: another name.
    """
    name = text.strip().lower()
    if name not in ENGINE_TYPES:
        hint = f"Valid: {', '.join(ENGINE_TYPES)}."
        raise EngineError(f"{text!r} is not a data type of engines", where=_TYPE, hint=hint)
    return name


def check_data_type(file: OnnxInput, data_type: str, calibrated: bool = False) -> None:
    """Check that the file has the requested data type, because an engine computes in the types of its file.

    Args:
        calibrated: whether the builder calibrates INT8 ranges itself (TensorRT 8 to 10).

    Raises:
        EngineError: it has another type; the hint says how to export the requested one.
    """
    formats = file.formats
    if data_type in ACTIVATIONS:
        matches = data_type in map(engine_type, formats)  # 4-bit weights have 8-bit activations, or floats
        if not matches and not (calibrated and data_type == "int8"):
            reason = f"its Q/DQ nodes are {', '.join(formats)}" if formats else "it has no Q/DQ nodes around its layers"
            raise EngineError(
                f"{file.path} is not quantized to {data_type}: {reason}",
                where=_TYPE,
                hint="Run `radioplat quantize`, then `radioplat export` on the checkpoint that it writes.",
            )
        return
    if formats:
        counts = ", ".join(f"{count} to {name}" for name, count in formats.items())
        raise EngineError(
            f"{file.path} has quantized layers ({counts}) and is not {data_type}",
            where=_TYPE,
            hint=f"Set {_TYPE}={formats.most_common(1)[0][0]}, or export a student that is not quantized.",
        )
    if file.float_type not in (None, data_type):
        raise EngineError(
            f"{file.path} is {file.float_type}, not {data_type}; an engine computes in the types of its ONNX file",
            where=_TYPE,
            hint=f"Export again with export.data_type={data_type}, or set {_TYPE}={file.float_type}.",
        )


def _check_weight_files(path: Path, model: ModelProto) -> list[Path]:
    """Check that all external weight files of ``model`` exist and are long enough; return them, sorted."""
    ends: dict[str, int] = {}
    for tensor in _tensors(model.graph):
        if uses_external_data(tensor):
            info = ExternalDataInfo(tensor)
            end = int(info.offset or 0) + int(info.length or 0)
            ends[info.location] = max(ends.get(info.location, 0), end)
    for name, end in ends.items():
        file = path.parent / name
        hint = f"Keep {path.name} and {name} in one folder, or run `radioplat export` again."
        if not file.is_file():
            raise EngineError(f"the weights of {path} are in {name}, which is missing", where=_WHERE, hint=hint)
        if file.stat().st_size < end:
            message = f"{file} is cut off: {path.name} needs {end} bytes of it and there are {file.stat().st_size}"
            raise EngineError(message, where=_WHERE, hint=hint)
    return [path.parent / name for name in sorted(ends)]


def _tensors(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            yield attribute.t


def _digest(files: list[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as opened:
            hashlib.file_digest(opened, lambda: digest)
    return digest.hexdigest()


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
