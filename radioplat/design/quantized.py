"""What a student with quantizers cannot be trained with, and what is said of it before it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from radioplat.errors import Problem
from radioplat.models.quantized.quantizer import Quantizer, quantizers
from radioplat.models.student.student import Student
from radioplat.spec.schema.root import Spec
from radioplat.spec.schema.train import Precision


def quantized_problems(spec: Spec, student: Student) -> Iterator[Problem]:
    """What of ``spec`` contradicts the quantizers of ``student``, which may be on the meta device."""
    if student.architecture.quantized is None:
        return
    train = spec.train
    if train.precision is Precision.fp16:
        hint = "Take bf16 or fp32."
        yield Problem("scales of quantizers are too small for fp16", "train.precision", hint)
    if train.damp:
        hint = "Set it to 0; rounding is noise enough."
        yield Problem("noise on weights would be rounded away by their quantizers", "train.damp", hint)


def count_quantizers(student: Student) -> str:
    """The quantizers of ``student`` in words; empty where it has none."""
    how = student.architecture.quantized
    if how is None:
        return ""
    found = quantizers(student)
    kinds = {
        "weights": _of(found, ".weight_quantizer"),
        "activations": _of(found, ".input_quantizer"),
        "residual branches": _of(found, ".residual_quantizer"),
    }
    parts = [f"{len(some)} on {kind} ({_formats(some)})" for kind, some in kinds.items() if some]
    left = f"; {len(how.skipped)} layers stay float" if how.skipped else ""
    return f"{len(found)} quantizers: {', '.join(parts)}{left}"


def _of(found: dict[str, Quantizer], ending: str) -> list[Quantizer]:
    return [quantizer for name, quantizer in found.items() if name.endswith(ending)]


def _formats(some: list[Quantizer]) -> str:
    counts = Counter(quantizer.format.value for quantizer in some)
    return ", ".join(counts) if len(counts) == 1 else ", ".join(f"{n} {name}" for name, n in counts.items())
