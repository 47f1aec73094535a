"""What every backend takes and gives: ``build(onnx, request) -> BuiltEngine``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from radioplat.errors import EngineError
from radioplat.spec.schema.engine import TensorRTConfig

SECTION = "gen_trt_engine"


@dataclass(frozen=True)
class Kernel:
    """One kernel of an engine that multiplies matrices.

    Attributes:
        name: the builder's.
        kind: ``conv_gemm`` or ``attention``.
        data_type: what it multiplies in: ``int8``, ``fp8``, ``fp32``, ..., or the builder's word for another.
        layers: names of the ONNX nodes that went into it; empty where the builder does not say.
    """

    name: str
    kind: str
    data_type: str
    layers: tuple[str, ...] = ()


@dataclass(frozen=True)
class BuildRequest:
    """The spec's part of a build.

    Attributes:
        config: section ``gen_trt_engine.tensorrt``.
        height, width: for files that leave them open; None: the file's.
        timing_cache: file of kernels' timings; None: none.
        gpu_id: the GPU to build on, where there is one.
        verbose: let the builder's messages through to standard error.
    """

    config: TensorRTConfig
    height: int | None = None
    width: int | None = None
    timing_cache: str | None = None
    gpu_id: int = 0
    verbose: bool = False


@dataclass(frozen=True)
class BuiltEngine:
    """What a backend made.

    Attributes:
        data: the engine, an object with the buffer protocol.
        library, version: what built it, and the only one that is sure to load it.
        targets: the GPUs it is for (``SM86``); empty for a CPU.
        input_shape: ``[3, height, width]``.
        batch: smallest, best and largest batch it takes.
        kernels: those that multiply matrices; None where the builder does not tell.
        notes: what differs from what was asked, a sentence each.
    """

    data: Any
    library: str
    version: str
    targets: list[str]
    input_shape: list[int]
    batch: tuple[int, int, int]
    kernels: list[Kernel] | None
    notes: list[str] = field(default_factory=list)


def close_shape(shape: list[int], request: BuildRequest) -> tuple[list[int], tuple[int, int, int]]:
    """Image size and (min, opt, max) batch for an input ``[B, C, H, W]`` whose open sides are negative.

    Raises:
        EngineError: a side stays open, or contradicts the file.
    """
    batch, channels, *sides = shape
    closed, config = [channels], request.config
    for side, asked, name in zip(sides, (request.height, request.width), ("height", "width"), strict=True):
        where = f"{SECTION}.input_{name}"
        if side < 0 and asked is None:
            raise EngineError(f"the ONNX file leaves the {name} open", where=where, hint="Give it.")
        if side >= 0 and asked not in (None, side):
            raise EngineError(f"the ONNX file has {name} {side}, not {asked}", where=where)
        closed.append(asked if side < 0 and asked is not None else side)
    sizes = (config.min_batch_size, config.opt_batch_size, config.max_batch_size)
    return closed, sizes if batch < 0 else (batch,) * 3


def refuse_unused(request: BuildRequest, who: str, fields: dict[str, str]) -> None:
    """Refuse fields that were set and that ``who`` has no use for; ``fields`` maps each to what to do instead.

    Raises:
        EngineError: one problem a field.
    """
    from radioplat.errors import Problem

    defaults, config = TensorRTConfig(), request.config
    problems = []
    for name, hint in fields.items():
        if name == "timing_cache":
            used, where = request.timing_cache is not None, f"{SECTION}.timing_cache"
        else:
            used, where = getattr(config, name) != getattr(defaults, name), f"{SECTION}.tensorrt.{name}"
        if used:
            problems.append(Problem(f"{who} cannot act on this field", where, hint))
    if problems:
        raise EngineError(*problems)
