"""The task ``quantize``: quantize a trained student; the result can be trained, evaluated and exported."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

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
    spec: str | Path | Mapping[str, Any] | Spec,
    overrides: Sequence[str] = (),
    *,
    callbacks: Sequence[Callback] = (),
    progress: bool = False,
    say: Callable[[str], None] = terminal.note,
) -> QuantizeReport:
    """Quantize ``quantize.checkpoint``, by default the latest student; with mode qat, train it.

    Args:
        spec: a YAML file, a mapping of sections, or a :class:`~radioplat.spec.schema.root.Spec`; it is not changed.
        overrides: ``key=value``, applied to it in order.
        callbacks: of that training, as for :func:`radioplat.tasks.distill.distill.distill`.
        progress: draw the progress of that training on stderr.
        say: called with each message for the user.

    Returns:
        The quantized (and trained) checkpoint at ``student``, its layers, and the similarity of the features.

    Raises:
        SpecError: fields of ``quantize`` contradict each other or name no layer, or the student is quantized already.
        DataError: there are no calibration images, or they are of one colour.
        EngineError, WeightsError: there is no checkpoint, or it cannot be read.

    Example:
        >>> result = radioplat.quantize("spec.yaml", ["quantize.calibration_batches=8"])
        >>> result.cosine["summary"]
        0.9991
    """
    spec = load_spec(spec, overrides)
    if problems := list(quantize_problems(spec)):
        raise SpecError(*problems)
    folder = TaskFolder(spec.results_dir, "quantize", spec.quantize.results_dir)
    if spec.quantize.mode is QuantizeMode.qat:
        report, trained = quantize_and_train(spec, folder, callbacks, progress, say)
        return replace(report, trained=trained)
    return post_train(spec, folder)
