"""An ONNX file as a TensorRT engine.

TensorRT for RTX (`tensorrt_rtx`) comes from the package registry, builds on a machine without a GPU, and for several
GPU generations at once. Where only the ordinary `tensorrt` is installed, the engine is built for the GPU at hand.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib
import json
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import onnx
from onnx.external_data_helper import ExternalDataInfo, uses_external_data

from radioplat.aside import written_aside
from radioplat.errors import EngineError
from radioplat.export.engine_log import EngineLog, readable
from radioplat.export.precision import parse_data_type, stored_data_type
from radioplat.spec.tasks import TensorRTConfig

SECTION = "gen_trt_engine"
LIBRARIES = ("tensorrt_rtx", "tensorrt_rtx_bindings", "tensorrt")


@dataclass(frozen=True)
class EngineReport:
    """What was built.

    Attributes:
        path: the engine; ``<path>.json`` beside it says what it was built from.
        bytes: its size.
        seconds: wall time of the build.
        compute_capabilities: the GPUs it is for (``SM86``); empty where the library did not say.
        library, version: the TensorRT that built it, and the only one that is sure to load it.
        data_type: ``fp32``, ``fp16`` or ``bf16``.
        input_shape: ``[3, height, width]``.
        batch: smallest, best and largest batch it takes.
        outputs: their names.
        kernels: convolution, GEMM and attention kernels by datatype; None where the builder's log does not tell.
    """

    path: Path
    bytes: int
    seconds: float
    compute_capabilities: list[str]
    library: str
    version: str
    data_type: str
    input_shape: list[int]
    batch: tuple[int, int, int]
    outputs: list[str]
    kernels: dict[str, int] | None


def load_tensorrt(names: Sequence[str] = LIBRARIES) -> ModuleType:
    """The first TensorRT that can be imported.

    Raises:
        EngineError: none can; says how to install one.
    """
    broken = []
    for name in names:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            continue
        except (ImportError, OSError) as error:  # installed, but one of its shared libraries is not
            broken.append(f"{name}: {error}")
    found = f" ({'; '.join(broken)})" if broken else ""
    raise EngineError(f"no TensorRT can be imported{found}", hint="Install one: pip install 'radioplat[engine]'.")


def build_engine(
    onnx_path: str | Path,
    engine_path: str | Path,
    config: TensorRTConfig,
    *,
    height: int | None = None,
    width: int | None = None,
    verbose: bool = False,
) -> EngineReport:
    """Build an engine and write it, and ``<engine_path>.json``, under their names once it is whole.

    Args:
        onnx_path: a file with one image input ``[B, 3, H, W]``; its float type must be ``config.data_type``, since the
            network is strongly typed.
        engine_path: must end in ``.engine``.
        height, width: needed where the file leaves them open; where it does not, they must agree with it.
        verbose: let the builder's messages through to standard error.

    Raises:
        EngineError: a wrong field, a file that does not fit the config, or whatever reason TensorRT gives.
    """
    onnx_path, engine_path = Path(onnx_path), Path(engine_path)
    if engine_path.suffix != ".engine":
        raise EngineError(f"{engine_path} must end in .engine", where=f"{SECTION}.trt_engine")
    data_type = parse_data_type(config.data_type, f"{SECTION}.tensorrt.data_type")
    _check_batches(config)
    trt = load_tensorrt()
    capabilities = _capabilities(trt, config.compute_capabilities)
    model = _read(onnx_path, data_type)
    log = EngineLog(echo=verbose)
    start = time.monotonic()
    with _speaking(log, onnx_path):
        logger = _logger(trt, log)
        builder = trt.Builder(logger)
        # The parser owns the weights that the network points to: it must live until the engine is built.
        network, parser = _parse(trt, builder, logger, onnx_path, log)
        build = builder.create_builder_config()
        build.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
        build.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, config.workspace_size << 20)
        shape, batch = _add_profile(builder, network, build, config, (height, width), log)
        targets = _set_targets(trt, build, capabilities)
        engine = builder.build_serialized_network(network, build)
        del parser
    if engine is None:
        raise _failure("TensorRT could not build an engine", onnx_path, log.reasons())
    report = EngineReport(
        path=engine_path,
        bytes=engine.nbytes,
        seconds=round(time.monotonic() - start, 3),
        compute_capabilities=targets,
        library=trt.__name__.removesuffix("_bindings"),
        version=trt.__version__,
        data_type=data_type,
        input_shape=shape,
        batch=batch,
        outputs=[network.get_output(i).name for i in range(network.num_outputs)],
        kernels=log.kernels(),
    )
    _write(engine, report, {"onnx": onnx_path.name, "onnx_sha256": _digest(onnx_path, model)}, config)
    return report


def _check_batches(config: TensorRTConfig) -> None:
    if not 1 <= config.min_batch_size <= config.opt_batch_size <= config.max_batch_size:
        raise EngineError(
            f"batch sizes must satisfy 1 <= min <= opt <= max, not {config.min_batch_size}, {config.opt_batch_size}, "
            f"{config.max_batch_size}",
            where=f"{SECTION}.tensorrt.{{min,opt,max}}_batch_size",
        )


def _capabilities(trt: ModuleType, asked: Sequence[str]) -> list[str]:
    """Names as the library spells them; an empty list for a library that builds for the GPU at hand only."""
    if not hasattr(trt, "ComputeCapability"):
        return []
    known = [name for name in dir(trt.ComputeCapability) if re.fullmatch(r"SM\d+", name)]
    known.sort(key=lambda name: int(name[2:]))
    where, hint = f"{SECTION}.tensorrt.compute_capabilities", f"Valid: {', '.join(known)}."
    if not asked:
        raise EngineError("an engine needs at least one GPU to be built for", where=where, hint=hint)
    for name in asked:
        if name.upper() not in known:
            raise EngineError(f"TensorRT {trt.__version__} builds for no GPU named {name!r}", where=where, hint=hint)
    return list(dict.fromkeys(name.upper() for name in asked))


def _read(path: Path, data_type: str) -> onnx.ModelProto:
    """The graph without its weights, once it is known to be one and typed as asked. (The parser takes any bytes.)"""
    where = f"{SECTION}.onnx_file"
    if not path.is_file():
        raise EngineError(f"there is no ONNX file {path}", where=where, hint="Run `radioplat export` first.")
    try:
        model = onnx.load(str(path), load_external_data=False)
    except Exception as error:  # protobuf's class depends on its implementation
        raise EngineError(f"{path} is not an ONNX file: {error}", where=where) from error
    if not model.graph.node:
        raise EngineError(f"{path} is not an ONNX file: it holds no graph", where=where)
    stored = stored_data_type(model)
    if stored not in (None, data_type):
        raise EngineError(
            f"{data_type} is asked for and {path} is typed {stored}; an engine computes in the types of its ONNX file",
            where=f"{SECTION}.tensorrt.data_type",
            hint=f"Export again with export.data_type={data_type}, or set {SECTION}.tensorrt.data_type={stored}.",
        )
    return model


@contextlib.contextmanager
def _speaking(log: EngineLog, path: Path) -> Iterator[None]:
    """TensorRT raises bare TypeErrors and RuntimeErrors whose reason is in its log."""
    try:
        yield
    except (RuntimeError, TypeError, ValueError, AttributeError) as error:
        raise _failure("TensorRT failed", path, log.reasons() or [str(error)]) from error


def _logger(trt: ModuleType, log: EngineLog) -> Any:
    class Logger(trt.ILogger):
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity, text: str) -> None:
            log.add(severity.name, text)

    return Logger()


def _parse(trt: ModuleType, builder: Any, logger: Any, path: Path, log: EngineLog) -> tuple[Any, Any]:
    strongly_typed = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    network = builder.create_network(0 if strongly_typed is None else 1 << int(strongly_typed))
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(path)):
        errors = [parser.get_error(i) for i in range(parser.num_errors)]
        nodes = [f"at node {e.node_name()} ({e.node_operator()})" for e in errors[:1] if e.node_operator()]
        reasons = readable([e.desc() for e in errors]) or log.reasons()
        raise _failure("TensorRT cannot read the graph", path, nodes + reasons)
    return network, parser


def _add_profile(
    builder: Any, network: Any, build: Any, config: TensorRTConfig, size: tuple[int | None, int | None], log: EngineLog
) -> tuple[list[int], tuple[int, int, int]]:
    """Fix the image size and the range of batches; returns ``[C, H, W]`` and (min, opt, max)."""
    if network.num_inputs != 1 or len(network.get_input(0).shape) != 4:
        raise EngineError("the ONNX file must have one input, images [B, 3, H, W]", where=f"{SECTION}.onnx_file")
    images = network.get_input(0)
    batch, channels, *sides = images.shape
    shape = [channels]
    for side, asked, name in zip(sides, size, ("height", "width"), strict=True):
        if side < 0 and asked is None:
            raise EngineError(f"the ONNX file leaves the {name} open", where=f"{SECTION}.input_{name}", hint="Give it.")
        if side >= 0 and asked not in (None, side):
            raise EngineError(f"the ONNX file has {name} {side}, not {asked}", where=f"{SECTION}.input_{name}")
        shape.append(asked if side < 0 else side)
    sizes = (config.min_batch_size, config.opt_batch_size, config.max_batch_size) if batch < 0 else (batch,) * 3
    profile = builder.create_optimization_profile()
    profile.set_shape(images.name, *[(n, *shape) for n in sizes])
    if build.add_optimization_profile(profile) < 0:
        raise _failure("TensorRT refuses the batch sizes", Path(), log.reasons())
    return shape, sizes


def _set_targets(trt: ModuleType, build: Any, capabilities: list[str]) -> list[str]:
    if capabilities:
        build.num_compute_capabilities = len(capabilities)
        for i, name in enumerate(capabilities):
            build.set_compute_capability(getattr(trt.ComputeCapability, name), i)
        return capabilities
    import torch

    return ["SM{}{}".format(*torch.cuda.get_device_capability())] if torch.cuda.is_available() else []


def _digest(path: Path, model: onnx.ModelProto) -> str:
    """SHA-256 of an ONNX file and of the weight files it names."""
    tensors = [tensor for tensor in model.graph.initializer if uses_external_data(tensor)]
    names = sorted({ExternalDataInfo(tensor).location for tensor in tensors})
    digest = hashlib.sha256()
    for file in [path] + [path.parent / name for name in names]:
        with file.open("rb") as opened:
            for block in iter(lambda: opened.read(1 << 20), b""):
                digest.update(block)
    return digest.hexdigest()


def _write(engine: Any, report: EngineReport, origin: dict[str, str], config: TensorRTConfig) -> None:
    path, data = report.path, memoryview(engine)
    facts = {k: v for k, v in dataclasses.asdict(report).items() if k != "path"}
    facts = {**origin, "engine_sha256": hashlib.sha256(data).hexdigest(), **facts, "config": dataclasses.asdict(config)}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        about = json.dumps(facts, indent=2).encode()
        for target, content in ((path, data), (path.with_name(f"{path.name}.json"), about)):
            with written_aside(target) as aside:
                aside.write_bytes(content)
    except OSError as error:
        raise EngineError(f"cannot write {path}: {error.strerror}", where=f"{SECTION}.trt_engine") from error


def _failure(what: str, path: Path, reasons: list[str]) -> EngineError:
    return EngineError(f"{what}: {'; '.join(reasons) or 'it gave no reason'}", where=str(path))
