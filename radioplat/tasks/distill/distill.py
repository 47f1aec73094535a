"""``radioplat.distill`` and ``radioplat.train``: the tasks of these names."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from radioplat.common.terminal import note
from radioplat.exporting.weights.export import WeightsReport
from radioplat.launch.driver import RunResult, run_task
from radioplat.spec.loading.load import load_spec
from radioplat.spec.loading.students import student_specs
from radioplat.spec.schema.root import Spec
from radioplat.tasks.evaluate.evaluation import Evaluation
from radioplat.tracking.follow import Callback

if TYPE_CHECKING:  # of the extra onnx
    from radioplat.exporting.engines.build import EngineReport
    from radioplat.exporting.onnx.export import OnnxReport


@dataclass(frozen=True)
class DistillResult(RunResult):
    """Result of a distillation, and of the tasks in ``distill.then``.

    Attributes:
        evaluation: the result of ``evaluate``, with ``metrics`` and ``report``; None without this task.
        exported: the ONNX file or weights of ``export``, at ``path``; None likewise.
        engine: the engine of ``gen_trt_engine``, at ``path``; None likewise.
    """

    evaluation: Evaluation | None = None
    exported: OnnxReport | WeightsReport | None = None
    engine: EngineReport | None = None


def distill(
    spec: str | Path | Mapping[str, Any] | Spec,
    overrides: Sequence[str] = (),
    *,
    callbacks: Sequence[Callback] = (),
    progress: bool = False,
    say: Callable[[str], None] | None = None,
) -> DistillResult:
    """Distil a student from the spec's teachers; a rerun continues from the newest checkpoint.

    Args:
        spec: a YAML file, a mapping of sections, or a :class:`~radioplat.spec.schema.root.Spec`; it is not changed.
        overrides: ``key=value``, applied to it in order.
        callbacks: called in this process, in order, with a ``StepEvent`` or ``CheckpointEvent``.
        progress: draw progress on stderr.
        say: called with each message for the user; default: print to stderr.

    Returns:
        The folder of the student, the number of steps, the costs, and the results of ``distill.then``.

    Raises:
        RadioplatError: see ``radioplat.errors``; the results folder's ``status.json`` then ends with FAILURE.
        Stopped: this process received SIGTERM, and a checkpoint is saved; unless handled, it exits with status 75.

    Example:
        >>> result = radioplat.distill("spec.yaml", ["train.num_epochs=2"])
        >>> student = radioplat.load_student(result.student)
    """
    spec = load_spec(spec, overrides)
    ran = run_task(spec, "distill", spec.distill.results_dir, callbacks, progress, say or note)
    if spec.distill.students:
        for own in student_specs(spec).values() if spec.distill.then else ():
            _then(own)
        return _result(ran)
    return _result(ran, **_then(spec))


def _result(ran: RunResult, **then: Any) -> DistillResult:
    return DistillResult(**{field.name: getattr(ran, field.name) for field in fields(ran)}, **then)


def train(
    spec: str | Path | Mapping[str, Any] | Spec,
    overrides: Sequence[str] = (),
    *,
    callbacks: Sequence[Callback] = (),
    progress: bool = False,
    say: Callable[[str], None] | None = None,
) -> RunResult:
    """Train ``model.backbone`` on labels: a classifier, or with ``model.detector`` a detector.

    Args:
        spec: as for :func:`distill`, with labels in place of teachers.
        overrides: as for :func:`distill`.
        callbacks: as for :func:`distill`.
        progress: as for :func:`distill`.
        say: as for :func:`distill`.

    Returns:
        The folder of the trained model, the number of steps and the costs. ``radioplat.load_student`` opens a
        classifier; ``radioplat.predict`` and the other tasks take a detector's folder, too.

    Raises:
        RadioplatError: as for :func:`distill`.
        Stopped: as for :func:`distill`.

    Example:
        >>> result = radioplat.train("labels.yaml", ["dataset.num_classes=10"])
        >>> radioplat.predict(result.student, "new_images/")[0].class_names
    """
    return run_task(load_spec(spec, overrides), "train", None, callbacks, progress, say or note)


def distill_together(
    specs: Mapping[str, Spec], folder: Path, callbacks: Sequence[Callback], say: Callable[[str], None]
) -> dict[str, RunResult]:
    """Distil several students from one pass of the teachers, each in the results folder of its own spec.

    Args:
        specs: of each student alone, by name; they may differ in what ``distill.students`` allows.
        folder: for what they have in common.

    Returns:
        The result of each, by name.

    Raises:
        RadioplatError: as for :func:`distill`; if some diverged, after the last step of the others.
    """
    whole = copy.deepcopy(next(iter(specs.values())))
    whole.results_dir = str(folder)
    return run_task(whole, "distill", None, callbacks, False, say, specs).students


def _then(spec: Spec) -> dict[str, Any]:
    """Run the tasks in ``distill.then``; return their results by the names in :class:`DistillResult`."""
    from radioplat.tasks.evaluate.evaluate import evaluate
    from radioplat.tasks.export.engine import build_engine
    from radioplat.tasks.export.export import export

    tasks: dict[str, tuple[str, Callable[[Spec], Any]]] = {
        "evaluate": ("evaluation", evaluate),
        "export": ("exported", export),
        "gen_trt_engine": ("engine", build_engine),
    }
    return {tasks[name][0]: tasks[name][1](spec) for name in spec.distill.then}
