"""The stages of a chain. A new stage is a value of :class:`~radioplat.spec.schema.compress.Stage` and an entry here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from radioplat.errors import Problem
from radioplat.models.vision_model import open_architecture
from radioplat.spec.checks.tasks.engine import engine_packages
from radioplat.spec.checks.tasks.export import export_problems
from radioplat.spec.checks.tasks.low_rank import low_rank_problems
from radioplat.spec.checks.tasks.prune import prune_problems
from radioplat.spec.checks.tasks.quantize import ONNX_BACKEND, quantize_problems
from radioplat.spec.checks.tasks.training_run import check
from radioplat.spec.checks.tasks.training_task import command_of
from radioplat.spec.resolved.number_formats import ACTIVATIONS, DATA_TYPES, engine_type
from radioplat.spec.schema.compress import Stage
from radioplat.spec.schema.engine import TensorRTConfig
from radioplat.spec.schema.evaluate import ModelEntry
from radioplat.spec.schema.root import Spec
from radioplat.tasks.compress.definition import Inputs, Product, Say, StageDefinition
from radioplat.tasks.compress.outcome import Outcome, student_outcome
from radioplat.tasks.compress.relax import milder_low_rank, milder_prune, milder_quantize
from radioplat.tasks.distill.distill import distill, train
from radioplat.tasks.evaluate.evaluate import evaluate
from radioplat.tasks.export.engine import build_engine
from radioplat.tasks.export.export import export
from radioplat.tasks.low_rank.low_rank import low_rank
from radioplat.tasks.prune.prune import prune
from radioplat.tasks.quantize.quantize import quantize

UNTRAINED = "untrained"  # fact of a QAT stage: the checkpoint before training


def _run_training(spec: Spec, say: Say) -> Outcome:
    run = distill if spec.distill.teacher else train
    result = run(spec, say=say, progress=True)
    return student_outcome(result.checkpoint, {"steps": result.global_step})


def _training_problems(spec: Spec) -> list[Problem]:
    return check(spec, command_of(spec))


def _start_from_student(spec: Spec, inputs: Inputs) -> None:
    spec.train.pretrained_model_path = str(inputs.latest[Product.student])
    spec.model.backbone.pretrained_backbone_path = None


def _run_prune(spec: Spec, say: Say) -> Outcome:
    report = prune(spec, say=say)
    return student_outcome(report.path, {"amount": report.amount})


def _run_quantize(spec: Spec, say: Say) -> Outcome:
    report = quantize(spec, say=say, progress=True)
    facts: dict[str, Any] = {"quantized": len(report.layers), "float": len(report.skipped)}
    return student_outcome(report.student, facts | ({UNTRAINED: str(report.path)} if report.trained else {}))


def _quantize_problems(spec: Spec) -> Iterator[Problem]:
    if spec.quantize.backend == ONNX_BACKEND:
        hint = "Use another backend, or quantize the exported file after the chain."
        yield Problem(f"{ONNX_BACKEND} writes no student for the next stage", "quantize.backend", hint)
    else:
        yield from quantize_problems(spec)


def _clear_paths(spec: Spec, inputs: Inputs) -> None:
    spec.quantize.model_path = spec.quantize.qat.results_dir = None


def _run_evaluate(spec: Spec, say: Say) -> Outcome:
    result = evaluate(spec)
    size = result.report.stat().st_size
    return Outcome(str(result.report), size, metrics=result.metrics, facts=result.facts())


def _prefer_test_images(spec: Spec) -> None:
    test = spec.dataset.test_dataset
    if test.tar_data_sources or test.images_dir:
        spec.dataset.val_dataset = test
        spec.dataset.index_dir = str(Path(spec.dataset.index_dir or "").with_name("index_test"))


def _evaluate_all_models(spec: Spec, inputs: Inputs) -> None:
    section = spec.evaluate
    if not section.resolutions:  # several resolutions are measured for one checkpoint only
        section.checkpoint = None
        section.models = [*section.models, *(ModelEntry(name, str(path)) for name, path in inputs.models.items())]


def _run_export(spec: Spec, say: Say) -> Outcome:
    report = export(spec)
    return Outcome(str(report.path), report.bytes, facts={"max_abs_error": report.max_abs_error})


def _export_outputs(spec: Spec) -> dict[str, str | None]:
    named = {f"export.{name}": getattr(spec.export, name) for name in ("onnx_file", "output", "bundle")}
    cache = (spec.export.calibration_cache or "").strip()
    return {**named, "export.calibration_cache": None if cache.lower() in ("true", "false") else cache}


def _run_engine(spec: Spec, say: Say) -> Outcome:
    report = build_engine(spec)
    for line in report.warnings:
        say(f"warning: {line}")
    facts = {
        "backend": report.backend.value,
        "version": report.version,
        "coverage": asdict(report.coverage),
        "warnings": report.warnings,
        "notes": report.notes,
    }
    return Outcome(str(report.path), report.bytes, facts=facts)


def _engine_misplaced(before: Sequence[Stage]) -> tuple[str, str] | None:
    if Stage.export not in before:
        return "an engine is built from an ONNX file", "Put export before it."
    last = len(before) - 1 - before[::-1].index(Stage.export)
    if changed := sorted(stage.value for stage in before[last:] if STAGES[stage].changes_student):
        return f"{changed[0]} comes after the export", "Put another export before the engine."
    return None


def _read_onnx(spec: Spec, inputs: Inputs) -> None:
    section = spec.gen_trt_engine
    section.onnx_file = str(inputs.latest[Product.onnx])
    formats = _engine_data_type(inputs.latest.get(Product.student))
    if formats and section.tensorrt.data_type == TensorRTConfig().data_type:
        section.tensorrt.data_type = formats


def _engine_data_type(student: Path | None) -> str:
    """Return the engine data type for a quantized student, int8 or fp8; empty if all its layers compute in floats.

    A layer with quantized weights only computes in floats. 4-bit weights are the exception: TensorRT has them
    under int8 (:func:`radioplat.exporting.engines.onnx_input.check_data_type`).
    """
    parts = open_architecture(student).quantizations.values() if student else ()
    layers = [layer for quantization in parts for layer in quantization.layers.values()]
    types = {
        layer.activations or engine_type(str(layer.weights))
        for layer in layers
        if layer.activations is not None or layer.weights not in (None, *ACTIVATIONS)
    }
    return max(types, key=lambda name: DATA_TYPES[name].first_sm, default="")  # the type that needs the newest GPU


def _engine_outputs(spec: Spec) -> dict[str, str | None]:
    cache = spec.gen_trt_engine.tensorrt.calibration.cal_cache_file
    if cache and Path(cache).exists():  # an existing file is only read; a missing one is written by the first engine
        cache = None
    named = {"gen_trt_engine.trt_engine": spec.gen_trt_engine.trt_engine}
    return {**named, "gen_trt_engine.tensorrt.calibration.cal_cache_file": cache}


_NOT_FIRST = "distill starts a new student and can only be the first stage", "To train further, use retrain."
_AFTER_LOW_RANK = "layers that low_rank has decomposed cannot be pruned", "Put prune before low_rank."
_TRAINING = ("model", "dataset", "train", "distill")
_QUANTIZE = StageDefinition(
    run=_run_quantize,
    section="quantize",
    depends_on=(*_TRAINING, "quantize"),
    place=_clear_paths,
    problems=_quantize_problems,
    milder=milder_quantize,
    needs_floats=True,
    quantizes=True,
)
STAGES: dict[Stage, StageDefinition] = {
    Stage.distill: StageDefinition(
        run=_run_training,
        section="distill",
        depends_on=_TRAINING,
        problems=_training_problems,
        misplaced=lambda before: _NOT_FIRST if before else None,
    ),
    Stage.prune: StageDefinition(
        run=_run_prune,
        section="prune",
        depends_on=(*_TRAINING, "prune"),
        problems=prune_problems,
        misplaced=lambda before: _AFTER_LOW_RANK if Stage.low_rank in before else None,
        milder=milder_prune,
        needs_floats=True,
    ),
    Stage.low_rank: StageDefinition(
        run=lambda spec, say: student_outcome(low_rank(spec, say=say).path),
        section="low_rank",
        depends_on=(*_TRAINING, "low_rank"),
        problems=low_rank_problems,
        milder=milder_low_rank,
        needs_floats=True,
    ),
    Stage.quantize: _QUANTIZE,
    Stage.ptq: replace(_QUANTIZE, overrides=("quantize.mode=ptq",)),
    Stage.qat: replace(_QUANTIZE, overrides=("quantize.mode=qat",)),
    Stage.retrain: StageDefinition(
        run=_run_training,
        section="distill",
        depends_on=_TRAINING,
        place=_start_from_student,
        problems=_training_problems,
    ),
    Stage.evaluate: StageDefinition(
        run=_run_evaluate,
        section="evaluate",
        depends_on=("dataset", "distill", "evaluate"),
        product=Product.figures,
        reads=(Product.student, Product.onnx, Product.engine),
        adapt=_prefer_test_images,
        place=_evaluate_all_models,
    ),
    Stage.export: StageDefinition(
        run=_run_export,
        section="export",
        depends_on=("dataset", "export", "gen_trt_engine", "quantize"),
        product=Product.onnx,
        problems=export_problems,
        outputs=_export_outputs,
    ),
    Stage.engine: StageDefinition(
        run=_run_engine,
        section="gen_trt_engine",
        depends_on=("gen_trt_engine",),
        product=Product.engine,
        reads=(Product.onnx,),
        problems=engine_packages,
        misplaced=_engine_misplaced,
        place=_read_onnx,
        outputs=_engine_outputs,
    ),
}
