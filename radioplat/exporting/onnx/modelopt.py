"""Quantization of ONNX files by NVIDIA ModelOpt (``quantize.backend: modelopt.onnx``)."""

from __future__ import annotations

import contextlib
import inspect
import io
import logging
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx

from radioplat.common.imports import needs
from radioplat.errors import EngineError, SpecError
from radioplat.exporting.made_of import record_sources
from radioplat.exporting.onnx.flat_student import INPUT
from radioplat.exporting.onnx.overflow import first_overflow
from radioplat.exporting.onnx.precision import widen
from radioplat.exporting.onnx.publish import save
from radioplat.exporting.qdq.graph import Graph, read_graph
from radioplat.exporting.qdq.graph_layers import find_layers
from radioplat.models.source import source_of

OVERFLOW_IMAGES = 16
# Arguments set by radioplat; the others can be given as quantize.backend_kwargs.
_OWN = ("onnx_path", "output_path", "quantize_mode", "calibration_data", "calibration_method", "model_id")
# By default it quantizes normalization and the residual stream of transformers: the cosine of a small ViT's features
# was 0.978, and is 0.9997 with these.
_TRANSFORMER_OPTIONS = {"op_types_to_quantize": ["Conv", "Gemm", "MatMul"], "disable_mha_qdq": True}


@dataclass(frozen=True)
class OnnxLayers:
    """Convolutions and linear layers of an ONNX file.

    Attributes:
        quantized: kind of node by name.
        skipped: the reason why it is in floats, by name.
        notes: the float type of the file, one sentence.
    """

    quantized: dict[str, str]
    skipped: dict[str, str]
    notes: list[str] = field(default_factory=list)


def load_quantize() -> Callable[..., Any]:
    """Import ModelOpt's ``quantize``.

    Raises:
        SpecError: it is not installed.
    """
    with needs("nvidia-modelopt", "modelopt.onnx"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from modelopt.onnx.quantization import quantize
    return cast("Callable[..., Any]", quantize)


def quantize_onnx(
    source: Path,
    path: Path,
    images: np.ndarray,
    *,
    format: str = "int8",
    method: str = "max",
    exclude: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
) -> OnnxLayers:
    """Quantize ``source`` and write it to ``path``.

    Args:
        source: in floats, with the interface of ``radioplat export``.
        images: calibration images, float32 ``[N, 3, H, W]`` in [0, 1], of the file's size.
        format: ``int8`` or ``fp8``.
        method: ``max`` or ``entropy``.
        exclude: regular expressions of names of nodes that stay float.
        options: further arguments of ModelOpt's ``quantize``. Without ``high_precision_dtype`` layers that are not
            quantized are in fp16, or in bf16 if a tensor of ``source`` overflows in fp16 on the first
            :data:`OVERFLOW_IMAGES` images.

    Raises:
        SpecError: ModelOpt is not installed, or has no such argument.
        EngineError: the file cannot be read, is quantized already, or ModelOpt fails on it.
    """
    quantize = load_quantize()
    model = read_graph(source, "quantize.model_path")
    if any(node.op_type in ("QuantizeLinear", "DequantizeLinear") for node in model.graph.node):
        raise EngineError(f"{source} is quantized already", where="quantize.model_path", hint="Use the file in floats.")
    known = [name for name in inspect.signature(quantize).parameters if name not in (*_OWN, "kwargs")]
    if unknown := sorted(set(options or {}) - set(known)):
        hint = f"Valid: {', '.join(known)}."
        raise SpecError(f"modelopt.onnx has no argument {unknown[0]}", where="quantize.backend_kwargs", hint=hint)
    normalizes = any(node.op_type == "LayerNormalization" for node in model.graph.node)
    arguments = {
        "calibration_eps": ["cpu"],
        "log_level": "ERROR",
        "nodes_to_exclude": list(exclude) or None,
        **(_TRANSFORMER_OPTIONS if normalizes else {}),
        **(options or {}),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
        file = Path(folder) / path.name
        given, why = arguments.pop("high_precision_dtype", None), ""
        for data_type in (given,) if given is not None else ("fp16", "bf16"):
            try:
                with warnings.catch_warnings(), _silent(), _restored_calibrators():
                    warnings.simplefilter("ignore")
                    quantize(
                        str(source),
                        quantize_mode=format,
                        calibration_data={INPUT: images.astype(np.float32)},
                        calibration_method=method,
                        output_path=str(file),
                        high_precision_dtype=data_type,
                        **arguments,
                    )
            except Exception as error:  # its errors have no common base class
                reason = " ".join(str(error).split())[:300] or type(error).__name__
                raise EngineError(f"ModelOpt cannot quantize {source}: {reason}", where="quantize.backend") from error
            if not file.is_file():
                raise EngineError(f"ModelOpt wrote nothing for {source}", where="quantize.backend")
            if given is not None or data_type != "fp16":
                break
            tensor = _overflow(model, images, Path(folder))
            if tensor is None:
                break
            why = f": {tensor} overflows in fp16"
        record_sources(file, [source_of(source)])
        layers = layers_of(onnx.load(str(file)))
        layers = replace(layers, notes=[f"layers that are not quantized are in {data_type}{why}"])
        if not layers.quantized:
            raise EngineError(f"ModelOpt quantized no layer of {source}", where="quantize.backend")
        for other in Path(folder).glob(f"{path.name}*"):  # external weights first
            if other != file:
                shutil.move(other, path.with_name(other.name))
        os.replace(file, path)
    return layers


def _overflow(model: onnx.ModelProto, images: np.ndarray, folder: Path) -> str | None:
    """Return a tensor of a float ``model`` that is infinite in fp16 on ``images``; None if there is none.

    onnxruntime computes fp16 in fp32 on most CPUs, so the file that ModelOpt wrote shows no overflow there.
    """
    (dimension,) = (value.type.tensor_type.shape.dim[0] for value in model.graph.input if value.name == INPUT)
    step = dimension.dim_value or 1
    chosen = images[: max(OVERFLOW_IMAGES // step, 1) * step].astype(np.float32)
    batches = [np.take(chosen, range(i, i + step), axis=0, mode="wrap") for i in range(0, len(chosen), step)]
    plain = folder / "plain" / "plain.onnx"
    plain.parent.mkdir()
    widened = onnx.ModelProto()
    widened.CopyFrom(model)
    widen(widened)
    save(widened, plain)
    try:
        return first_overflow(plain, "fp16", batches, "quantize.model_path")
    finally:
        shutil.rmtree(plain.parent)


def layers_of(model: onnx.ModelProto) -> OnnxLayers:
    """Return the convolutions and linear layers of ``model``, by whether both operands are quantized."""
    layers = find_layers(Graph(model))
    quantized = {layer.name: layer.node.op_type for layer in layers if layer.is_quantized}
    skipped = {layer.name: "not quantized by ModelOpt" for layer in layers if not layer.is_quantized}
    return OnnxLayers(quantized, skipped)


@contextlib.contextmanager
def _restored_calibrators() -> Iterator[None]:
    """Undo ModelOpt's changes of onnxruntime's calibration, which ``export.cpu`` uses in this process."""
    from onnxruntime.quantization import base_quantizer, calibrate, qdq_quantizer

    modules = (base_quantizer, calibrate, qdq_quantizer)
    classes = [c for module in modules for c in vars(module).values() if isinstance(c, type)]
    owned = [c for c in classes if c.__module__.startswith("onnxruntime.")]
    saved = [(owner, dict(vars(owner))) for owner in (*modules, *owned)]
    try:
        yield
    finally:
        for owner, before in saved:
            for name, value in before.items():
                if vars(owner).get(name) is not value:
                    setattr(owner, name, value)


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Silence ModelOpt and its helpers, which log and print at any log level."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(before)
