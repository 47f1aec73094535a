"""What a trial's student is worth and takes: the objectives."""

from __future__ import annotations

from pathlib import Path

from radioplat.compression.cost import cost_of
from radioplat.errors import RadioplatError
from radioplat.models.quantized.quantizer import quantizers
from radioplat.models.student.checkpoint import load_student
from radioplat.models.student.student import Student
from radioplat.spec.schema.root import Spec
from radioplat.tasks.evaluate.gate_metrics import measure, measuring_spec

JUDGED = ("fidelity", "knn", "top1")


def judge(spec: Spec, checkpoint: Path, folder: Path, wanted: set[str]) -> dict[str, float]:
    """The metrics called ``wanted`` of the student in ``checkpoint``; what costs nothing is always there.

    Args:
        folder: where the evaluation writes.

    Raises:
        RadioplatError: one of them cannot be had of this student.
    """
    student = load_student(checkpoint)
    cost = cost_of(student.backbone, student.architecture.img_size, timed="latency" in wanted)
    found: dict[str, float] = {"params": cost.params, "macs": cost.macs, "bytes": weight_bytes(student)}
    if cost.latency is not None:
        found["latency"] = cost.latency
    if wanted & set(JUDGED):
        asked = measuring_spec(spec)
        if spec.wandb.enable:  # the figures and the picture of the features go into the trial's run
            asked.wandb.enable, asked.evaluate.pictures = True, spec.evaluate.pictures
        found |= measure(asked, checkpoint, folder)
    if missing := sorted(wanted - found.keys()):
        hint = "fidelity needs teachers, knn labels in both splits, top1 a classifier of the student."
        raise RadioplatError(f"nothing is known of {', '.join(missing)}", where="objectives", hint=hint)
    return found


def weight_bytes(student: Student) -> int:
    """Of the backbone's weights and scales: 4 for a float, what its format takes for a quantized one."""
    names = {name.removeprefix("backbone."): q for name, q in quantizers(student).items()}
    bits = {
        name.removesuffix("_quantizer").removesuffix(".weight") + ".weight": quantizer.format.bits
        for name, quantizer in names.items()
        if name.endswith(".weight_quantizer")
    }
    return sum(p.numel() * bits.get(name, 32) for name, p in student.backbone.named_parameters()) // 8
