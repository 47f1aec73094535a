"""What the two TensorRTs have in common: a parsed network, a profile of batches, and reasons out of their log."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from radioplat.errors import EngineError
from radioplat.exporting.engines.backends.builder_log import EngineLog, readable
from radioplat.exporting.engines.interface import BuildRequest, close_shape
from radioplat.exporting.engines.onnx_input import OnnxInput

# What a builder says of a GPU or a driver, and what to do about it.
_HINTS = {
    "FP32 GEMM is not supported": "SM75 multiplies no fp32: leave it out of compute_capabilities, or export in fp16.",
}


@dataclass
class Build:
    """The objects of one build. The parser owns the weights that the network points to, so all live as long.

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
    """Parse ``file`` and set what every build sets: workspace, detailed kernel list, batches.

    Raises:
        EngineError: the parser refuses the file, or a side of the images stays open.
    """
    shape, batch = close_shape(file.image_shape, request)
    logger = make_logger(trt, log)
    builder = trt.Builder(logger)
    network = builder.create_network(flags)
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(file.path)):
        raise _unreadable(parser, file.path, log)
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    if (sparse := getattr(trt.BuilderFlag, "SPARSE_WEIGHTS", None)) is not None:
        config.set_flag(sparse)  # kernels that skip zeros, for layers whose weights are 2:4; others stay as they are
    config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, request.config.workspace_size << 20)
    profile = builder.create_optimization_profile()
    profile.set_shape(network.get_input(0).name, *[(n, *shape) for n in batch])
    if config.add_optimization_profile(profile) < 0:
        raise failure("TensorRT refuses the batch sizes", file.path, log.reasons())
    return Build(trt, builder, network, parser, config, shape, batch)


def finish_build(build: Build, log: EngineLog, path: Path) -> Any:
    """The serialized engine.

    Raises:
        EngineError: with the builder's reason.
    """
    engine = build.builder.build_serialized_network(build.network, build.config)
    if engine is None:
        raise failure("TensorRT could not build an engine", path, log.reasons())
    return engine


@contextlib.contextmanager
def speaking(log: EngineLog, path: Path) -> Iterator[None]:
    """TensorRT raises bare TypeErrors and RuntimeErrors whose reason is in its log."""
    try:
        yield
    except (RuntimeError, TypeError, ValueError, AttributeError) as error:
        raise failure("TensorRT failed", path, log.reasons() or [str(error)]) from error


def make_logger(trt: Any, log: EngineLog) -> Any:
    """A logger of ``trt`` that writes into ``log``."""

    class Logger(trt.ILogger):
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity, text: str) -> None:
            log.add(severity.name, text)

    return Logger()


def _unreadable(parser: Any, path: Path, log: EngineLog) -> EngineError:
    errors = [parser.get_error(i) for i in range(parser.num_errors)]
    node, operation = next(((e.node_name(), e.node_operator()) for e in errors if e.node_operator()), ("", ""))
    what = "TensorRT cannot read the graph" + (f": at node {node} ({operation})" if operation else "")
    if operation and not parser.supports_operator(operation):
        hint = "Export the student without it, or take gen_trt_engine.backend=onnxruntime where that knows it."
        return EngineError(f"{what}: it does not know this operation", where=str(path), hint=hint)
    error = failure(what, path, readable([e.desc() for e in errors]) or log.reasons())
    if operation == "Resize":
        hint = "A table is resized in the graph: export for one size (leave export.dynamic_resolution out)."
        return EngineError(error.problems[0].message, where=str(path), hint=hint)
    if operation in ("QuantizeLinear", "DequantizeLinear"):
        hint = f"Ranges must be symmetric and signed, biases floats: `radioplat lint {path.name}` names what is not."
        return EngineError(error.problems[0].message, where=str(path), hint=hint)
    return error


def failure(what: str, path: Path, reasons: list[str]) -> EngineError:
    """What failed and why, with what to do where that is known."""
    text = "; ".join(reasons) or "it gave no reason"
    hint = next((hint for sign, hint in _HINTS.items() if sign in text), "")
    return EngineError(f"{what}: {text}", where=str(path), hint=hint)
