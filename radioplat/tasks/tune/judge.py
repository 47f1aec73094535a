"""Objectives of a trial: metrics and costs of its student."""

from __future__ import annotations

from pathlib import Path

from radioplat.compression.cost import cost_of
from radioplat.errors import RadioplatError
from radioplat.evaluation.measure.registry import objective_needs
from radioplat.exporting.engines.time_model import engine_seconds
from radioplat.models.quantized.quantizer import quantizers
from radioplat.models.student.checkpoint import load_student
from radioplat.models.student.student import Student
from radioplat.spec.schema.root import Spec
from radioplat.spec.schema.train import Tracker
from radioplat.tasks.evaluate.gate_metrics import measure, measuring_spec
from radioplat.tasks.tune.space import COSTS, TuneSpace


def judge(spec: Spec, checkpoint: Path, folder: Path, space: TuneSpace) -> dict[str, float]:
    """Measure the objectives of ``space`` for the student in ``checkpoint``, and all costs other than latency.

    Args:
        folder: where the evaluation writes.

    Raises:
        RadioplatError: one of them cannot be measured for this student.
    """
    wanted = set(space.modes)
    student = load_student(checkpoint)
    cost = cost_of(student.backbone, student.architecture.img_size)
    values: dict[str, float] = {"params": cost.params, "macs": cost.macs, "bytes": weight_bytes(student)}
    if "latency" in wanted:
        values["latency"] = engine_seconds(student, student.architecture.img_size, spec.gen_trt_engine.backend)
    if wanted - COSTS.keys():
        measuring = measuring_spec(spec, space.own_metrics)
        if spec.tracked_by(Tracker.wandb):  # figures and pictures are logged in the trial's W&B run
            measuring.train.trackers, measuring.evaluate.pictures = [Tracker.wandb], spec.evaluate.pictures
        values |= measure(measuring, checkpoint, folder)
    if missing := sorted(wanted - values.keys()):
        message = f"not measured: {', '.join(missing)}"
        raise RadioplatError(message, where="objectives", hint=f"{objective_needs()}.")
    return values


def weight_bytes(student: Student) -> int:
    """Return the size of the backbone's weights and scales: 4 bytes a float, the format's bits a quantized weight."""
    names = {name.removeprefix("backbone."): q for name, q in quantizers(student).items()}
    bits = {
        name.removesuffix("_quantizer").removesuffix(".weight") + ".weight": quantizer.format.bits
        for name, quantizer in names.items()
        if name.endswith(".weight_quantizer")
    }
    return sum(p.numel() * bits.get(name, 32) for name, p in student.backbone.named_parameters()) // 8
