"""The task ``evaluate``: students or detectors, on the images of ``dataset.val_dataset``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from radioplat.errors import Problem, SpecError
from radioplat.evaluation.models.detectors import kind_of
from radioplat.models.model_kind import ModelKind
from radioplat.spec.checks.tasks.evaluate import evaluation_problems
from radioplat.spec.loading.load import load_spec
from radioplat.spec.schema.root import Spec
from radioplat.tasks.evaluate.detectors import DetectorsReport, evaluate_detectors
from radioplat.tasks.evaluate.evaluate_detector import DetectorReport, evaluate_detector
from radioplat.tasks.evaluate.students import EvaluateResult, evaluate_students
from radioplat.tasks.shared.find_checkpoint import find_checkpoint

Result: TypeAlias = EvaluateResult | DetectorReport | DetectorsReport
Progress: TypeAlias = Callable[[int, int], None] | None

# Functions that evaluate a checkpoint, and evaluate.models, by kind; of mixed kinds all but the first are refused.
_CHECKPOINT: dict[ModelKind, Callable[[Spec, Path, Progress], Result]] = {
    ModelKind.detector: lambda spec, checkpoint, progress: evaluate_detector(spec, checkpoint),
    ModelKind.student: evaluate_students,
}
_MODELS: dict[ModelKind, Callable[[Spec, Progress], Result]] = {
    ModelKind.detector: lambda spec, progress: evaluate_detectors(spec),
    ModelKind.student: lambda spec, progress: evaluate_students(spec, None, progress),
}


def evaluate(
    spec: str | Path | Mapping[str, Any] | Spec,
    overrides: Sequence[str] = (),
    progress: Callable[[int, int], None] | None = None,
) -> EvaluateResult | DetectorReport | DetectorsReport:
    """Evaluate ``evaluate.models``, or ``evaluate.checkpoint``, by default the latest student or detector.

    Images of ``dataset.train_dataset`` are the bank of kNN, and decoders and linear probes are fitted on them.

    Args:
        spec: a YAML file, a mapping of sections, or a :class:`~radioplat.spec.schema.root.Spec`; it is not changed.
        overrides: ``key=value``, applied to it in order.
        progress: called with (batches done, number of batches).

    Returns:
        ``metrics`` by name, ``report`` (the HTML page), and the findings: of one student or of several, or of one
        detector or several.

    Raises:
        SpecError: the spec is wrong.
        RadioplatError: no checkpoint, no held-out images, or weights that cannot be read.

    Example:
        >>> result = radioplat.evaluate("spec.yaml")
        >>> result.metrics["knn"], result.report
        (0.71, PosixPath('results/evaluate/report.html'))
    """
    spec = load_spec(spec, overrides)
    kind, path = evaluated(spec)
    return _MODELS[kind](spec, progress) if path is None else _CHECKPOINT[kind](spec, path, progress)


def evaluated(spec: Spec) -> tuple[ModelKind, Path | None]:
    """Return the kind of the evaluated models, and the checkpoint; None for ``evaluate.models``.

    Raises:
        RadioplatError: fields contradict each other, there is no checkpoint, or models are of several kinds.
    """
    if not (spec.dataset.val_dataset.tar_data_sources or spec.dataset.val_dataset.images_dir):
        raise SpecError("an evaluation needs held-out images", where="dataset.val_dataset.tar_data_sources")
    if problems := list(evaluation_problems(spec)):
        raise SpecError(*problems)
    if not spec.evaluate.models:
        path = find_checkpoint(spec, spec.evaluate.checkpoint, "evaluate.checkpoint").resolve()
        return kind_of(path) or ModelKind.student, path
    kinds = [kind_of(model.path) for model in spec.evaluate.models]
    kind = next((each for each in _MODELS if each in kinds), ModelKind.student)
    hint = "Evaluate detectors and students separately."
    problems = [
        Problem(
            f"{model.path} is a {other}, and others of evaluate.models are {kind}s", f"evaluate.models[{i}].path", hint
        )
        for i, (model, other) in enumerate(zip(spec.evaluate.models, kinds, strict=True))
        if other not in (kind, None)
    ]
    if problems:
        raise SpecError(*problems)
    return kind, None
