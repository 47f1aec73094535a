"""The ONNX file that an engine is built from: read, hashed, and checked against what is asked of it."""

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
from radioplat.exporting.engines.interface import SECTION
from radioplat.exporting.engines.onnx_layers import WeightLayer, weight_layers
from radioplat.exporting.onnx.precision import stored_data_type
from radioplat.spec.resolved.number_formats import ACTIVATIONS, FLOATS, engine_type

ENGINE_TYPES = (*FLOATS, *ACTIVATIONS)
_WHERE = f"{SECTION}.onnx_file"
_AGAIN = "Name the file that `radioplat export` wrote, or export again."
_TYPE = f"{SECTION}.tensorrt.data_type"


@dataclass(frozen=True)
class OnnxInput:
    """An ONNX file with one image input.

    Attributes:
        path: the file.
        model: its graph; weights in files beside it are not loaded.
        sha256: of the file and of the weight files it names.
        float_type: ``fp32``, ``fp16`` or ``bf16``, the type of most of its weights; None where it has none.
        layers: its convolutions and linear layers.
        inputs, outputs: shape by name; a side that is open is its name.
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
        """Quantized layers by format."""
        return Counter(layer.format for layer in self.layers if layer.format)

    @property
    def image_shape(self) -> list[int]:
        """``[B, 3, H, W]`` with -1 for open sides.

        Raises:
            EngineError: there is another input, or it is no batch of images.
        """
        shapes = list(self.inputs.values())
        if len(shapes) != 1 or len(shapes[0]) != 4:
            raise EngineError("the ONNX file must have one input, images [B, 3, H, W]", where=_WHERE)
        return [side if isinstance(side, int) and side > 0 else -1 for side in shapes[0]]


def read_onnx(path: Path) -> OnnxInput:
    """The graph of an ONNX file without the weights that lie beside it. (TensorRT's parser takes any bytes.)

    Raises:
        EngineError: there is no such file, it is no ONNX file, the file with its weights is missing or cut off, or it
            takes or gives something else than float32.
    """
    if not path.is_file():
        raise EngineError(f"there is no ONNX file {path}", where=_WHERE, hint="Run `radioplat export` first.")
    try:
        model = onnx.load(str(path), load_external_data=False)
    except Exception as error:  # protobuf's class depends on its implementation
        raise EngineError(f"{path} is not an ONNX file: {error}", where=_WHERE, hint=_AGAIN) from error
    if not model.graph.node:
        raise EngineError(f"{path} is not an ONNX file: it holds no graph", where=_WHERE, hint=_AGAIN)
    beside = _check_weight_files(path, model)
    weights = {tensor.name for tensor in model.graph.initializer}
    for value in [v for v in [*model.graph.input, *model.graph.output] if v.name not in weights]:
        if value.type.tensor_type.elem_type != TensorProto.FLOAT:
            kind = TensorProto.DataType.Name(value.type.tensor_type.elem_type).lower()
            hint = "`radioplat export` writes float32 inputs and outputs at any export.data_type."
            raise EngineError(f"{value.name} of {path} is {kind}, not float32", where=_WHERE, hint=hint)
    inputs = {name: shape for name, shape in _shapes(model.graph.input).items() if name not in weights}
    return OnnxInput(
        path=path,
        model=model,
        sha256=_digest([path, *beside]),
        float_type=stored_data_type(model),
        layers=weight_layers(model),
        inputs=inputs,
        outputs=_shapes(model.graph.output),
    )


def parse_engine_type(text: str) -> str:
    """One of :data:`ENGINE_TYPES`, in any case (TAO writes ``FP16``).

    Raises:
        EngineError: for any other name.
    """
    name = text.strip().lower()
    if name not in ENGINE_TYPES:
        hint = f"Valid: {', '.join(ENGINE_TYPES)}."
        raise EngineError(f"{text!r} is not a data type an engine can be built for", where=_TYPE, hint=hint)
    return name


def check_data_type(file: OnnxInput, data_type: str, calibrated: bool = False) -> None:
    """An engine computes in the types of its file, so the file must be of the type that is asked for.

    Args:
        calibrated: whether the builder brings INT8 ranges of its own (TensorRT 8 to 10).

    Raises:
        EngineError: it is not; says how to get one that is.
    """
    formats = file.formats
    if data_type in ACTIVATIONS:
        held = data_type in map(engine_type, formats)  # 4-bit weights stand beside 8-bit activations, or beside floats
        if not held and not (calibrated and data_type == "int8"):
            found = f"its Q/DQ nodes hold {', '.join(formats)}" if formats else "it has no Q/DQ nodes around its layers"
            raise EngineError(
                f"{data_type} is asked for and {file.path} is not quantized so: {found}",
                where=_TYPE,
                hint="Run `radioplat quantize`, then `radioplat export` on the checkpoint that it writes.",
            )
        return
    if formats:
        found = ", ".join(f"{count} to {name}" for name, count in formats.items())
        raise EngineError(
            f"{data_type} is asked for and {file.path} quantizes layers, {found}",
            where=_TYPE,
            hint=f"Set {_TYPE}={formats.most_common(1)[0][0]}, or export a student that is not quantized.",
        )
    if file.float_type not in (None, data_type):
        raise EngineError(
            f"{data_type} is asked for and {file.path} is typed {file.float_type}; an engine computes in the types of "
            "its ONNX file",
            where=_TYPE,
            hint=f"Export again with export.data_type={data_type}, or set {_TYPE}={file.float_type}.",
        )


def _check_weight_files(path: Path, model: ModelProto) -> list[Path]:
    """The files with weights that ``model`` names, sorted, once each is known to be there and long enough."""
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
            raise EngineError(f"the weights of {path} lie in {name}, which is not beside it", where=_WHERE, hint=hint)
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
            for block in iter(lambda: opened.read(1 << 20), b""):
                digest.update(block)
    return digest.hexdigest()


def _shapes(values) -> dict[str, list[int | str]]:
    return {v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in values}
