"""The task ``quantize``: quantize a trained student; the result can be trained, evaluated and exported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from radioplat.common import terminal
from radioplat.errors import SpecError
from radioplat.spec.checks.tasks.quantize import quantize_problems
from radioplat.spec.loading.load import load_spec
from radioplat.spec.schema.quantize import QuantizeMode
from radioplat.spec.schema.root import Spec
from radioplat.tasks.quantize.post_training import post_train
from radioplat.tasks.quantize.qat import quantize_and_train
from radioplat.tasks.quantize.report import QuantizeReport
from radioplat.tracking.follow import Callback
from radioplat.tracking.results import TaskFolder


def quantize(
    spec: Spec | dict | str | Path,
    overrides: Sequence[str] = (),
    *,
    callbacks: Sequence[Callback] = (),
    progress: bool = False,
    say: Callable[[str], None] = terminal.note,
) -> QuantizeReport:
    """Quantize ``quantize.checkpoint``, by default the latest student; with mode qat, train it.

    Args:
        callbacks, progress, say: for that training; see :func:`radioplat.tasks.distill.distill.distill`.

    Raises:
        SpecError: fields of ``quantize`` contradict each other or name no layer, or the student is quantized already.
        DataError: there are no calibration images, or they are of one colour.
        EngineError, WeightsError: there is no checkpoint, or it cannot be read.
    """
    spec = load_spec(spec, overrides)
    if problems := list(quantize_problems(spec)):
        raise SpecError(*problems)
    folder = TaskFolder(spec.results_dir, "quantize", spec.quantize.results_dir)
    if spec.quantize.mode is QuantizeMode.qat:
        report, trained = quantize_and_train(spec, folder, callbacks, progress, say)
        return replace(report, trained=trained)
    return post_train(spec, folder)
