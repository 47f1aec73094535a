"""The task ``gen_trt_engine``: an engine from an ONNX file."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from radioplat.exporting.engines.build import EngineReport, build_engine
from radioplat.spec.loading.load import to_yaml
from radioplat.spec.schema.root import Spec
from radioplat.tasks.export.export import check_channels, onnx_file
from radioplat.tasks.shared.find_checkpoint import task_folder
from radioplat.tracking.results import TaskFolder
from radioplat.tracking.task_log import log_task
from radioplat.tracking.weights_and_biases.artifacts import Product
from radioplat.tracking.weights_and_biases.task import log_task_to_wandb


def gen_trt_engine(spec: Spec) -> EngineReport:
    """Task ``gen_trt_engine``: ``gen_trt_engine.onnx_file``, by default what ``export`` wrote, as an engine.

    Raises:
        EngineError: there is no ONNX file yet, it does not fit the spec, or TensorRT gives a reason.
    """
    folder = TaskFolder(spec.results_dir, "gen_trt_engine", spec.gen_trt_engine.results_dir)
    report = log_task(folder, "gen_trt_engine", to_yaml(spec), lambda: _gen_trt_engine(spec), _engine_kpi)
    made = Product(report.path, "engine", [Path(spec.gen_trt_engine.onnx_file or onnx_file(spec))])
    log_task_to_wandb(spec, folder.path, "gen_trt_engine", figures=_engine_kpi(report), made=made)
    return report


def _engine_kpi(report: EngineReport) -> dict[str, float]:
    return {"bytes": report.bytes, "seconds": report.seconds}


def _gen_trt_engine(spec: Spec) -> EngineReport:
    asked = spec.gen_trt_engine
    check_channels(asked.input_channel, "gen_trt_engine")
    config = asked.tensorrt
    if asked.batch_size > 0:
        one = asked.batch_size
        config = dataclasses.replace(config, min_batch_size=one, opt_batch_size=one, max_batch_size=one)
    return build_engine(
        asked.onnx_file or onnx_file(spec),
        engine_file(spec),
        config,
        backend=asked.backend,
        height=asked.input_height,
        width=asked.input_width,
        timing_cache=asked.timing_cache,
        gpu_id=asked.gpu_id,
        verbose=asked.verbose,
    )


def engine_file(spec: Spec) -> Path:
    """Where task ``gen_trt_engine`` writes."""
    return Path(spec.gen_trt_engine.trt_engine or task_folder(spec, "gen_trt_engine") / "student.engine")
