"""Interface of backends: ``build(onnx, request, data_types) -> BuiltEngine``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from radioplat.errors import EngineError, Problem
from radioplat.spec.schema.engine import TensorRTConfig

SECTION = "gen_trt_engine"
# Fields that no backend for CPUs supports, and what to do instead.
NOT_FOR_CPUS = {
    "calibration": "It reads INT8 ranges from Q/DQ nodes: `radioplat quantize`, then `radioplat export` on the "
    "checkpoint that it writes.",
    "timing_cache": "Remove it; for a CPU no kernels are timed.",
    "workspace_size": "Remove it; it limits the memory of a GPU.",
    "compute_capabilities": "Remove it; the file is for CPUs.",
    "dla_core": "Remove it; a DLA is part of a Jetson.",
}


@dataclass(frozen=True)
class WeightLayer:
    """A convolution or linear layer.

    Attributes:
        name: of its ONNX node.
        module: its torch module (``backbone.blocks.0.mlp.fc1``), or the node's name.
        format: of its weights (``int8``, ``fp8``, ...) if its operands are outputs of DequantizeLinear, else None.
        block: how many of its weights in a row share a scale; 0 if all of an output channel do.
    """

    name: str
    module: str
    format: str | None
    block: int = 0


@dataclass(frozen=True)
class Kernel:
    """One kernel of an engine that multiplies matrices.

    Attributes:
        name: the builder's name.
        kind: ``conv_gemm`` or ``attention``.
        data_type: type of the multiplication: ``int8``, ``fp8``, ``fp32``, ..., or the builder's name of another.
        layers: names of the ONNX nodes that it computes; empty if the builder does not report them.
        writes: type of its output, named like ``data_type``; empty if the builder does not report it.
    """

    name: str
    kind: str
    data_type: str
    layers: tuple[str, ...] = ()
    writes: str = ""


@dataclass(frozen=True)
class LayerTime:
    """The time of one layer of an engine while it runs.

    Attributes:
        name: the library's name of the kernel.
        kind: the library's name of the operation.
        milliseconds: mean over the calls.
        reads, writes: data types of its first input and its first output, in our names where there is one; empty if
            the library does not report them.
    """

    name: str
    kind: str
    milliseconds: float
    reads: str = ""
    writes: str = ""


@dataclass(frozen=True)
class BuildRequest:
    """The spec's part of a build.

    Attributes:
        config: section ``gen_trt_engine.tensorrt``.
        height, width: for files in which they are dynamic; None: the file's.
        timing_cache: file of kernels' timings; None: none.
        gpu_id: the GPU to build on.
        verbose: print the builder's messages to standard error.
        float_type: of the file of the user, where a CPU gets it with fp32 in place of another one; None: the file's.
    """

    config: TensorRTConfig
    height: int | None = None
    width: int | None = None
    timing_cache: str | None = None
    gpu_id: int = 0
    verbose: bool = False
    float_type: str | None = None


@dataclass(frozen=True)
class BuiltEngine:
    """Result of a backend.

    Attributes:
        data: the engine, an object with the buffer protocol.
        library, version: the library that built it; only this version is sure to load it.
        targets: GPUs that can run it (``SM86``); empty for a CPU.
        input_shape: ``[3, height, width]``.
        batch: smallest, optimal and largest batch size.
        kernels: kernels that multiply matrices; None if the builder reports none.
        layers: number of layers, of any kind; None if the builder does not report them.
        requantizing: number of layers that multiply nothing, read floats and write 8 bits: each passes over a tensor
            that the layer before could have written in 8 bits. None if the builder reports no types.
        rest: the float type in which a quantized engine computes what is not quantized, where the builder chose it by
            measuring: ``precision``, ``cpu`` and ``milliseconds`` by type. None: the types of the file.
        notes: deviations from the request, one sentence each.
    """

    data: Any
    library: str
    version: str
    targets: list[str]
    input_shape: list[int]
    batch: tuple[int, int, int]
    kernels: list[Kernel] | None
    layers: int | None = None
    requantizing: int | None = None
    rest: dict[str, Any] | None = None
    notes: list[str] = field(default_factory=list)


@contextlib.contextmanager
def naming_failures(library: str, path: Path) -> Iterator[None]:
    """In this block, turn any error of a library that runs an engine into one that names the engine.

    Raises:
        EngineError: the library failed.
    """
    try:
        yield
    except EngineError:
        raise
    except Exception as error:  # their errors have no common base class
        raise EngineError(f"{library} failed: {' '.join(str(error).split())[:300]}", where=str(path)) from error


def resolve_shape(shape: list[int], request: BuildRequest) -> tuple[list[int], tuple[int, int, int]]:
    """Return ``[C, H, W]`` and (min, opt, max) batch size for an input ``[B, C, H, W]`` with -1 for dynamic sides.

    Raises:
        EngineError: a side is missing, or contradicts the file.
    """
    batch, channels, *sides = shape
    resolved, config = [channels], request.config
    for side, requested, name in zip(sides, (request.height, request.width), ("height", "width"), strict=True):
        where = f"{SECTION}.input_{name}"
        if side < 0 and requested is None:
            raise EngineError(f"the {name} is dynamic in the ONNX file", where=where, hint="Set it.")
        if side >= 0 and requested not in (None, side):
            raise EngineError(f"the ONNX file has {name} {side}, not {requested}", where=where)
        resolved.append(requested if side < 0 and requested is not None else side)
    sizes = (config.min_batch_size, config.opt_batch_size, config.max_batch_size)
    return resolved, sizes if batch < 0 else (batch,) * 3


def refuse_unsupported(request: BuildRequest, library: str, fields: dict[str, str]) -> None:
    """Refuse fields that are set and that ``library`` does not support; ``fields`` maps each to a hint.

    Raises:
        EngineError: one problem for each field.
    """
    defaults, config = TensorRTConfig(), request.config
    problems = []
    for name, hint in fields.items():
        if name == "timing_cache":
            is_set, where = request.timing_cache is not None, f"{SECTION}.timing_cache"
        else:
            is_set, where = getattr(config, name) != getattr(defaults, name), f"{SECTION}.tensorrt.{name}"
        if is_set:
            problems.append(Problem(f"{library} does not support this field", where, hint))
    if problems:
        raise EngineError(*problems)
