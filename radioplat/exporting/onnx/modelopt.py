"""NVIDIA ModelOpt on ONNX files (``quantize.backend: modelopt.onnx``): floats in, Q/DQ pairs out."""

from __future__ import annotations

import contextlib
import inspect
import io
import logging
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from radioplat.common.optional_imports import needs
from radioplat.errors import EngineError, SpecError
from radioplat.exporting.onnx.flat_student import INPUT
from radioplat.exporting.qdq.graph import Graph, read_graph
from radioplat.exporting.qdq.layers import find_layers

# What is ours to say; the rest of its arguments may be given as quantize.backend_kwargs.
_OWN = ("onnx_path", "output_path", "quantize_mode", "calibration_data", "calibration_method", "model_id")
# Left to itself it quantizes normalization and the stream between a transformer's blocks: the cosine of a small ViT's
# features fell to 0.978, and stays at 0.9997 so.
_OF_TRANSFORMERS = {"op_types_to_quantize": ["Conv", "Gemm", "MatMul"], "disable_mha_qdq": True}


@dataclass(frozen=True)
class OnnxLayers:
    """What of an ONNX file is quantized: names of convolutions and linear layers, with their kind of node."""

    quantized: dict[str, str]
    skipped: dict[str, str]


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
    """Write ``source`` with quantizers as ``path``.

    Args:
        source: in floats, with the interface of ``radioplat export``.
        images: that ranges are measured on, float32 ``[N, 3, H, W]`` in [0, 1], of the file's size.
        format: ``int8`` or ``fp8``.
        method: ``max`` or ``entropy``.
        exclude: regular expressions of names of nodes that stay float.
        options: further arguments of ModelOpt's own ``quantize``.

    Raises:
        SpecError: ModelOpt is not installed, or takes no such argument.
        EngineError: the file cannot be read, is quantized already, or ModelOpt fails on it.
    """
    with needs("nvidia-modelopt", "modelopt.onnx"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from modelopt.onnx.quantization import quantize
    model = read_graph(source, "quantize.model_path")
    if any(node.op_type in ("QuantizeLinear", "DequantizeLinear") for node in model.graph.node):
        raise EngineError(f"{source} is quantized already", where="quantize.model_path", hint="Give it in floats.")
    known = [name for name in inspect.signature(quantize).parameters if name not in (*_OWN, "kwargs")]
    if unknown := sorted(set(options or {}) - set(known)):
        hint = f"It knows {', '.join(known)}."
        raise SpecError(f"modelopt.onnx takes no {unknown[0]}", where="quantize.backend_kwargs", hint=hint)
    normalizes = any(node.op_type == "LayerNormalization" for node in model.graph.node)
    arguments = {
        "calibration_eps": ["cpu"],
        "high_precision_dtype": "fp32",
        "log_level": "ERROR",
        "nodes_to_exclude": list(exclude) or None,
        **(_OF_TRANSFORMERS if normalizes else {}),
        **(options or {}),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
        made = Path(folder) / path.name
        try:
            with warnings.catch_warnings(), _silent(), _calibrators_kept():
                warnings.simplefilter("ignore")
                quantize(
                    str(source),
                    quantize_mode=format,
                    calibration_data={INPUT: images.astype(np.float32)},
                    calibration_method=method,
                    output_path=str(made),
                    **arguments,
                )
        except Exception as error:  # its classes share no base but Exception
            said = " ".join(str(error).split())[:300] or type(error).__name__
            raise EngineError(f"ModelOpt cannot quantize {source}: {said}", where="quantize.backend") from error
        if not made.is_file():
            raise EngineError(f"ModelOpt wrote nothing for {source}", where="quantize.backend")
        found = layers_of(onnx.load(str(made)))
        if not found.quantized:
            raise EngineError(f"ModelOpt quantized no layer of {source}", where="quantize.backend")
        for file in Path(folder).glob(f"{path.name}*"):  # weights beside it first
            if file != made:
                shutil.move(file, path.with_name(file.name))
        os.replace(made, path)
    return found


def layers_of(model: onnx.ModelProto) -> OnnxLayers:
    """The convolutions and linear layers of ``model``, by whether both operands are quantized."""
    layers = find_layers(Graph(model))
    quantized = {layer.name: layer.node.op_type for layer in layers if layer.is_quantized}
    skipped = {layer.name: "ModelOpt left it" for layer in layers if not layer.is_quantized}
    return OnnxLayers(quantized, skipped)


@contextlib.contextmanager
def _calibrators_kept() -> Iterator[None]:
    """Undo what ModelOpt changes in onnxruntime's calibration, which ``export.cpu`` uses in this process."""
    from onnxruntime.quantization import base_quantizer, calibrate, qdq_quantizer

    modules = (base_quantizer, calibrate, qdq_quantizer)
    classes = [c for module in modules for c in vars(module).values() if isinstance(c, type)]
    ours = [c for c in classes if c.__module__.startswith("onnxruntime.")]
    kept = [(holder, dict(vars(holder))) for holder in (*modules, *ours)]
    try:
        yield
    finally:
        for holder, before in kept:
            for name, value in before.items():
                if vars(holder).get(name) is not value:
                    setattr(holder, name, value)


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Without the lines that ModelOpt and its helpers log and print whatever they are told."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(before)
