"""The task ``gen_trt_engine``: build an engine from an ONNX file."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from radioplat.common.imports import require_extra
from radioplat.errors import SpecError
from radioplat.spec.checks.tasks.engine import backend_packages
from radioplat.spec.loading.load import load_spec, to_yaml
from radioplat.spec.schema.engine import TensorRTConfig
from radioplat.spec.schema.root import Spec
from radioplat.tasks.export.export import check_channels, onnx_file
from radioplat.tasks.shared.find_checkpoint import task_folder
from radioplat.tracking.results import TaskFolder
from radioplat.tracking.task_log import log_task
from radioplat.tracking.weights_and_biases.artifacts import Product
from radioplat.tracking.weights_and_biases.task_record import log_task_to_wandb

if TYPE_CHECKING:
    from radioplat.exporting.engines.build import EngineInputs, EngineReport

_PURPOSE = "an engine, which is built from an ONNX file,"


def build_engine(spec: str | Path | Mapping[str, Any] | Spec, overrides: Sequence[str] = ()) -> EngineReport:
    """Build an engine from ``gen_trt_engine.onnx_file``, by default the file of ``export``.

    It is the command ``radioplat gen_trt_engine``. ``gen_trt_engine.backend`` is TensorRT, onnxruntime or OpenVINO.

    Args:
        spec: a YAML file, a mapping of sections, or a :class:`~radioplat.spec.schema.root.Spec`; it is not changed.
        overrides: ``key=value``, applied to it in order.

    Returns:
        The engine at ``path``, its number format, batch sizes, seconds of the build and, if measured, its latency.

    Raises:
        SpecError: the spec is wrong.
        EngineError: there is no ONNX file, it does not fit the spec, or the backend refuses it.

    Example:
        >>> radioplat.build_engine("spec.yaml", ["gen_trt_engine.backend=openvino"]).path
        PosixPath('results/gen_trt_engine/student.engine')
    """
    spec = load_spec(spec, overrides)
    folder = TaskFolder(spec.results_dir, "gen_trt_engine", spec.gen_trt_engine.results_dir)
    report = log_task(folder, "gen_trt_engine", to_yaml(spec), lambda: _gen_trt_engine(spec), _engine_kpi)
    made = Product(report.path, "engine", [_source(spec)])
    log_task_to_wandb(spec, folder.path, "gen_trt_engine", figures=_engine_kpi(report), made=made)
    return report


def _engine_kpi(report: EngineReport) -> dict[str, float]:
    return {"bytes": report.bytes, "seconds": report.seconds}


def open_engine_inputs(spec: Spec) -> EngineInputs:
    """Read and check everything that an engine is built from.

    Raises:
        EngineError: as :func:`build_engine`.
    """
    _require_packages(spec)
    from radioplat.exporting.engines.build import open_inputs

    section = spec.gen_trt_engine
    check_channels(section.input_channel, "gen_trt_engine")
    return open_inputs(_source(spec), engine_file(spec), _config(spec), section.backend)


def _require_packages(spec: Spec) -> None:
    require_extra("onnx", _PURPOSE, "gen_trt_engine.onnx_file")
    if problems := list(backend_packages(spec)):
        raise SpecError(*problems)


def _source(spec: Spec) -> Path:
    return Path(spec.gen_trt_engine.onnx_file or onnx_file(spec))


def _config(spec: Spec) -> TensorRTConfig:
    config, size = spec.gen_trt_engine.tensorrt, spec.gen_trt_engine.batch_size
    if size > 0:
        config = dataclasses.replace(config, min_batch_size=size, opt_batch_size=size, max_batch_size=size)
    return config


def _gen_trt_engine(spec: Spec) -> EngineReport:
    _require_packages(spec)
    from radioplat.exporting.engines import build

    section = spec.gen_trt_engine
    check_channels(section.input_channel, "gen_trt_engine")
    return build.build_engine(
        _source(spec),
        engine_file(spec),
        _config(spec),
        backend=section.backend,
        height=section.input_height,
        width=section.input_width,
        timing_cache=section.timing_cache,
        gpu_id=section.gpu_id,
        verbose=section.verbose,
        latency_seconds=section.latency_seconds,
    )


def engine_file(spec: Spec) -> Path:
    """Return the path of the engine that task ``gen_trt_engine`` writes."""
    return Path(spec.gen_trt_engine.trt_engine or task_folder(spec, "gen_trt_engine") / "student.engine")
