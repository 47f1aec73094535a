"""One stage done: the existing task called with the stage's spec, and what it left in figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from radioplat.compression.cost import cost_of
from radioplat.models.quantized.quantizer import quantizers
from radioplat.models.vision_model import open_model, weight_files
from radioplat.spec.checks.tasks.compress import QUANTIZES
from radioplat.spec.schema.compress import Stage
from radioplat.spec.schema.root import Spec
from radioplat.tasks.distill.distill import distill, train
from radioplat.tasks.evaluate.detector import DetectorReport
from radioplat.tasks.evaluate.detectors import DetectorsReport, side_tables
from radioplat.tasks.evaluate.evaluate import evaluate
from radioplat.tasks.evaluate.gate_metrics import metrics_of
from radioplat.tasks.export.export import export, gen_trt_engine
from radioplat.tasks.low_rank.low_rank import low_rank
from radioplat.tasks.prune.prune import prune
from radioplat.tasks.quantize.quantize import quantize


@dataclass(frozen=True)
class Outcome:
    """What a stage left.

    Attributes:
        path: a checkpoint folder, or a file.
        bytes: of a checkpoint the weights' files, of anything else the file.
        params, macs: of the backbone without scales, for one image; None where no student was left.
        metrics: by the names of ``compress.gates.metric``; where the stage measured any.
        facts: what else the task reported.
    """

    path: str
    bytes: int
    params: int | None = None
    macs: int | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)


Say = Callable[[str], None]
UNTRAINED = "untrained"  # of what QAT left: the checkpoint that it began with


def student_outcome(path: Path, facts: dict[str, Any] | None = None) -> Outcome:
    """What a student or detector takes.

    Args:
        path: a checkpoint folder, or the file of ``export.format: safetensors``.

    Raises:
        WeightsError: it cannot be read.
    """
    model = open_model(path)
    cost = cost_of(model.backbone, model.img_size)
    size = sum(file.stat().st_size for file in weight_files(path))
    params = cost.params - sum(q.scale.numel() for q in quantizers(model.backbone).values())
    return Outcome(str(path), size, params, cost.macs, facts=facts or {})


def run_stage(stage: Stage, spec: Spec, say: Say) -> Outcome:
    """Call the stage's task; ``spec`` names what it reads and where it writes.

    Raises:
        RadioplatError: as the task does.
    """
    return _RUNS[stage](spec, say)


def _train(spec: Spec, say: Say) -> Outcome:
    run = distill if spec.distill.teacher else train
    result = run(spec, say=say, progress=True)
    return student_outcome(result.checkpoint, {"steps": result.global_step})


def _prune(spec: Spec, say: Say) -> Outcome:
    report = prune(spec, say=say)
    return student_outcome(report.path, {"amount": report.amount})


def _low_rank(spec: Spec, say: Say) -> Outcome:
    report = low_rank(spec, say=say)
    return student_outcome(report.path)


def _quantize(spec: Spec, say: Say) -> Outcome:
    report = quantize(spec, say=say, progress=True)
    facts = {"quantized": len(report.layers), "float": len(report.skipped)}
    return student_outcome(report.result, facts | ({UNTRAINED: str(report.path)} if report.trained else {}))


def _evaluate(spec: Spec, say: Say) -> Outcome:
    result = evaluate(spec)
    facts: dict[str, Any] = {}
    if not isinstance(result, DetectorReport):
        facts["models"] = [row.as_json() for row in result.models]
    if isinstance(result, DetectorsReport):
        facts["tables"] = [asdict(table) for table in side_tables(result)]
    return Outcome(str(result.report), result.report.stat().st_size, metrics=metrics_of(result), facts=facts)


def _export(spec: Spec, say: Say) -> Outcome:
    report = export(spec)
    return Outcome(str(report.path), report.bytes, facts={"max_abs_error": report.max_abs_error})


def _engine(spec: Spec, say: Say) -> Outcome:
    report = gen_trt_engine(spec)
    facts = {"backend": report.backend.value, "version": report.version, "coverage": asdict(report.coverage)}
    return Outcome(str(report.path), report.bytes, facts=facts)


_RUNS: dict[Stage, Callable[[Spec, Say], Outcome]] = {
    Stage.distill: _train,
    Stage.retrain: _train,
    Stage.prune: _prune,
    Stage.low_rank: _low_rank,
    **dict.fromkeys(QUANTIZES, _quantize),
    Stage.evaluate: _evaluate,
    Stage.export: _export,
    Stage.engine: _engine,
}
