"""Checks and a summary of students with quantizers, before they are trained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from radioplat.errors import Problem
from radioplat.models.quantized.additions import NAME as ADDITIONS
from radioplat.models.quantized.attention import NAME as ATTENTION
from radioplat.models.quantized.quantizer import Quantizer, quantizers
from radioplat.models.student.student import Student
from radioplat.spec.resolved.precision import precision_of
from radioplat.spec.schema.root import Spec
from radioplat.spec.schema.train import Precision


def quantized_problems(spec: Spec, student: Student) -> Iterator[Problem]:
    """Yield fields of ``spec`` that contradict the quantizers of ``student``, which may be on the meta device."""
    if student.architecture.quantized is None:
        return
    train = spec.train
    if precision_of(train) is Precision.fp16:
        hint = "Take bf16 or fp32."
        yield Problem("scales of quantizers are too small for fp16", "train.precision", hint)
    if train.damp:
        message = "noise on weights is not supported with quantizers, which round it"
        yield Problem(message, "train.damp", "Set it to 0.")


def count_quantizers(student: Student) -> str:
    """Return the number of quantizers of ``student`` by kind, as a sentence; empty if it has none."""
    quantization = student.architecture.quantized
    if quantization is None:
        return ""
    by_name = quantizers(student)
    kinds = {
        "weights": _of(by_name, ".weight_quantizer"),
        "activations": _of(by_name, ".input_quantizer"),
        "residual branches": [q for n, q in by_name.items() if n.endswith(".residual_quantizer") or ADDITIONS in n],
    }
    kinds["attention"] = [q for n, q in by_name.items() if ATTENTION in n]
    parts = [f"{len(some)} on {kind} ({_formats(some)})" for kind, some in kinds.items() if some]
    skipped = f"; {len(quantization.skipped)} layers stay float" if quantization.skipped else ""
    return f"{len(by_name)} quantizers: {', '.join(parts)}{skipped}"


def _of(by_name: dict[str, Quantizer], ending: str) -> list[Quantizer]:
    return [quantizer for name, quantizer in by_name.items() if name.endswith(ending)]


def _formats(some: list[Quantizer]) -> str:
    counts = Counter(quantizer.format.value for quantizer in some)
    return ", ".join(counts) if len(counts) == 1 else ", ".join(f"{n} {name}" for name, n in counts.items())
