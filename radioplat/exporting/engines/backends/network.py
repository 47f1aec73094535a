"""Common code of both TensorRT backends: parse the network, set the batch profile, report reasons from the log."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from radioplat.errors import EngineError
from radioplat.exporting.engines.backends.builder_log import EngineLog, readable
from radioplat.exporting.engines.interface import BuildRequest, resolve_shape
from radioplat.exporting.engines.onnx_input import OnnxInput
from radioplat.spec.schema.quantize import BLOCK_SIZES

# Builder messages about a GPU or a driver, with advice.
_HINTS = {
    "FP32 GEMM is not supported": "SM75 has no fp32 kernels: leave it out of compute_capabilities, or export in fp16.",
}


@dataclass
class Build:
    """The objects of one build. All must stay alive together: the parser owns the weights of the network.

    Attributes:
        trt: the library.
        shape, batch: ``[3, H, W]`` and (min, opt, max).
    """

    trt: ModuleType
    builder: Any
    network: Any
    parser: Any
    config: Any
    shape: list[int]
    batch: tuple[int, int, int]


def start_build(trt: ModuleType, log: EngineLog, file: OnnxInput, request: BuildRequest, flags: int) -> Build:
    """Parse ``file``, and set workspace, detailed kernel list and batch sizes.

    Raises:
        EngineError: the parser refuses the file, it has 4-bit weights of another scheme than TensorRT's, or a side of
            the images is missing.
    """
    shape, batch = resolve_shape(file.image_shape, request)
    if odd := [layer.module for layer in file.layers if layer.format == "int4" and layer.block not in BLOCK_SIZES]:
        sizes = " or ".join(map(str, BLOCK_SIZES))
        message = f"TensorRT has 4-bit weights in blocks of {sizes}, with float activations; {odd[0]} has others"
        hint = "Quantize with activations native (mode: weight_only_ptq), or weights to int8."
        raise EngineError(message, where=str(file.path), hint=hint)
    logger = make_logger(trt, log)
    builder = trt.Builder(logger)
    network = builder.create_network(flags)
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(file.path)):
        raise _unreadable(parser, file.path, log)
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    if (sparse := getattr(trt.BuilderFlag, "SPARSE_WEIGHTS", None)) is not None:
        config.set_flag(sparse)  # kernels that skip zeros, for layers with 2:4 weights
    config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, request.config.workspace_size << 20)
    profile = builder.create_optimization_profile()
    profile.set_shape(network.get_input(0).name, *[(n, *shape) for n in batch])
    if config.add_optimization_profile(profile) < 0:
        raise failure("TensorRT refuses the batch sizes", file.path, log.reasons())
    return Build(trt, builder, network, parser, config, shape, batch)


def finish_build(build: Build, log: EngineLog, path: Path) -> Any:
    """Return the serialized engine.

    Raises:
        EngineError: with the builder's reason.
    """
    engine = build.builder.build_serialized_network(build.network, build.config)
    if engine is None:
        raise failure("TensorRT could not build an engine", path, log.reasons())
    return engine


@contextlib.contextmanager
def reporting(log: EngineLog, path: Path) -> Iterator[None]:
    """Add the reason from the log to errors that TensorRT raises."""
    try:
        yield
    except (RuntimeError, TypeError, ValueError, AttributeError) as error:
        raise failure("TensorRT failed", path, log.reasons() or [str(error)]) from error


def make_logger(trt: Any, log: EngineLog) -> Any:
    """Return a logger of ``trt`` that writes to ``log``."""

    class Logger(trt.ILogger):
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity, text: str) -> None:
            log.add(severity.name, text)

    return Logger()


def _unreadable(parser: Any, path: Path, log: EngineLog) -> EngineError:
    errors = [parser.get_error(i) for i in range(parser.num_errors)]
    node, operation = "", ""
    for parser_error in errors:
        if parser_error.node_operator() and not operation:
            node, operation = parser_error.node_name(), parser_error.node_operator()
    message = "TensorRT cannot read the graph" + (f": at node {node} ({operation})" if operation else "")
    if operation and not parser.supports_operator(operation):
        hint = "Export the student without it, or use gen_trt_engine.backend=onnxruntime if that supports it."
        return EngineError(f"{message}: it does not support this operation", where=str(path), hint=hint)
    error = failure(message, path, readable([parser_error.desc() for parser_error in errors]) or log.reasons())
    if operation == "Resize":
        hint = "A table is resized in the graph: export for one size (without export.dynamic_resolution)."
        return EngineError(error.problems[0].message, where=str(path), hint=hint)
    if operation in ("QuantizeLinear", "DequantizeLinear"):
        hint = f"Ranges must be symmetric and signed, biases floats: `radioplat lint {path.name}` lists the others."
        return EngineError(error.problems[0].message, where=str(path), hint=hint)
    return error


def failure(message: str, path: Path, reasons: list[str]) -> EngineError:
    """Return the error with its reasons, and advice if there is some."""
    text = "; ".join(reasons) or "without a reason"
    hint = next((hint for sign, hint in _HINTS.items() if sign in text), "")
    return EngineError(f"{message}: {text}", where=str(path), hint=hint)
