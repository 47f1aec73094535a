"""The task ``evaluate``: what a trained student is worth, beside its teachers and its untrained self."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from radioplat.common.cpu_threads import limit_torch_threads, torch_callers
from radioplat.errors import EngineError, SpecError
from radioplat.evaluation.measure.downstream import decode_maps
from radioplat.evaluation.measure.findings import Findings
from radioplat.evaluation.measure.images import open_images
from radioplat.evaluation.measure.measure import Texts, measure
from radioplat.evaluation.measure.processes import Processes
from radioplat.evaluation.metrics.fidelity import FidelityResult
from radioplat.evaluation.metrics.knn import KnnResult
from radioplat.evaluation.metrics.zero_shot import text_embeddings
from radioplat.evaluation.models.checkpoints import ListedModel
from radioplat.evaluation.models.detectors import finds_boxes
from radioplat.evaluation.models.held_out_labels import held_out_labels
from radioplat.evaluation.models.needs import not_asked
from radioplat.evaluation.models.open_models import TRAINED, open_evaluated, teachers_of, unfit, with_teachers
from radioplat.models.detectors.checkpoint import is_detector
from radioplat.models.student.checkpoint import has_average
from radioplat.spec.checks.tasks.evaluate import evaluation_problems
from radioplat.spec.loading.load import load_spec, to_yaml
from radioplat.spec.schema.root import Spec
from radioplat.tasks.evaluate.detector import DetectorReport, evaluate_detector
from radioplat.tasks.evaluate.detectors import DetectorsReport, evaluate_detectors
from radioplat.tasks.evaluate.side_by_side import ModelRow, side_by_side
from radioplat.tasks.export.export import find_checkpoint
from radioplat.tracking.results import TaskFolder, write_atomic
from radioplat.tracking.task_log import keep_diary
from radioplat.tracking.weights_and_biases.task import tell_task


@dataclass(frozen=True)
class EvaluateResult:
    """What an evaluation found.

    Attributes:
        checkpoint: the student that was evaluated; the first of ``evaluate.models``.
        knn: by model: ``student``, ``student at 448`` (``evaluate.resolutions``), ``untrained student`` and each
            teacher's name; or the names of ``evaluate.models`` and the teachers'. Empty without labels.
        fidelity: by student, teacher and kind (``summary``, ``spatial``).
        accuracy: top-1 of the student's own classifier, None without one; of several models in ``found``.
        report: path of ``report.html``.
        found: all the rest: linear probe, zero-shot, correspondence, segmentation, change, agreement over resolutions.
        models: a row for each of ``evaluate.models``, in its order.
    """

    checkpoint: Path
    folder: Path
    knn: dict[str, KnnResult]
    fidelity: dict[str, dict[str, dict[str, FidelityResult]]]
    accuracy: float | None
    report: Path
    found: Findings = field(default_factory=Findings)
    models: list[ModelRow] = field(default_factory=list)


def evaluate(
    spec: Spec | dict | str | Path, overrides: tuple[str, ...] = (), progress: Callable[[int, int], None] | None = None
) -> EvaluateResult | DetectorReport | DetectorsReport:
    """Evaluate ``evaluate.models``, or ``evaluate.checkpoint``, by default the latest student or detector there is.

    Images are those of ``dataset.val_dataset``; those of ``dataset.train_dataset`` are the bank.

    Args:
        progress: called with (batches done, batches in all).

    Raises:
        RadioplatError: no checkpoint, no held-out images, or weights that cannot be read.
    """
    spec = load_spec(spec, overrides)
    if not (spec.dataset.val_dataset.tar_data_sources or spec.dataset.val_dataset.images_dir):
        raise SpecError("an evaluation needs held-out images", where="dataset.val_dataset.tar_data_sources")
    if problems := list(evaluation_problems(spec)):
        raise SpecError(*problems)
    path = None
    if any(finds_boxes(model.path) for model in spec.evaluate.models):
        return evaluate_detectors(spec)
    if not spec.evaluate.models:
        path = find_checkpoint(spec, spec.evaluate.checkpoint, "evaluate.checkpoint").resolve()
        if is_detector(path):
            return evaluate_detector(spec, path)
    folder = TaskFolder(spec.results_dir, "evaluate", spec.evaluate.results_dir)
    return keep_diary(folder, "evaluate", to_yaml(spec), lambda: _evaluate(spec, path, folder, progress), _kpi)


def _evaluate(
    spec: Spec, path: Path | None, folder: TaskFolder, progress: Callable[[int, int], None] | None
) -> EvaluateResult:
    from radioplat.tasks.evaluate.summary import write_summary

    device = "cuda" if torch.cuda.is_available() else "cpu"
    opened = open_evaluated(spec, path, device)
    teachers = teachers_of(spec, opened)
    sizes = {s.size for s in opened.models.values()} | {t.view_size for t in teachers}
    named = next((form.class_names for form in opened.architectures.values() if form.class_names), ())
    bank, queries, classes = open_images(spec, sizes, named)
    # Before the teachers' weights are loaded, and anything is encoded.
    if problems := unfit(spec, opened, bank.reader.index, queries.reader.index):
        raise SpecError(*problems)
    texts = _texts(spec, classes, device)
    kinds = {t.name: sorted(t.wanted & {"summary", "spatial"}) for t in teachers}
    seed = spec.dataset.val_dataset.seed
    first = next(iter(opened.models)) if opened.listed else None
    with with_teachers(spec, opened, device) as models:
        at_once = torch_callers(len(models)) if device == "cpu" else 1
        with limit_torch_threads(bank.threads, at_once), _processes(spec, path) as processes:
            found = measure(
                models, kinds, bank, queries, spec.evaluate, progress, at_once, texts, seed, processes, first
            )
        with limit_torch_threads(bank.threads):
            decode_maps(spec, models, bank, device, found)
    if classifies := max((form.num_classes for form in opened.architectures.values()), default=0):
        labels = held_out_labels(queries.reader.index, classifies)
        found.absent += [*map(str, labels.problems), *labels.notes]
    found.absent += not_asked(spec)
    rows = side_by_side(opened.listed, found)
    found.absent += _remembered(opened.listed, rows)
    report, pictures = write_summary(spec, folder, path, found, classes, rows)
    path = path or opened.listed[0].path
    accuracy = found.accuracy.get(TRAINED)
    result = EvaluateResult(path, folder.path, found.knn, found.fidelity, accuracy, report, found, rows)
    write_atomic(folder.path / "results.json", json.dumps(_as_json(result, spec.evaluate.use_ema), indent=1))
    shown = [(f"pca/{i}" if i else "pca", png) for i, (_, png) in enumerate(pictures)]
    # The figures and pictures of a student belong to the run that trained it.
    tell_task(spec, folder.path, "evaluate", figures=_kpi(result), pictures=shown, joins=path.parent)
    return result


def _remembered(models: list[ListedModel], rows: list[ModelRow]) -> list[str]:
    """Have the records of engines that were evaluated say so; a line for each that cannot be written."""
    lines = []
    for model, row in zip(models, rows, strict=True):
        if model.engine is not None and model.evaluated is not None:
            try:
                model.engine.remember(row.figures())
            except EngineError as error:
                lines.append(f"{row.name}: its record does not say that it was evaluated: {error}")
    return lines


def _processes(spec: Spec, checkpoint: Path | None) -> contextlib.AbstractContextManager[Processes | None]:
    """The processes that encode beside this one; None where one is enough."""
    count = spec.evaluate.num_gpus
    return contextlib.closing(Processes(spec, checkpoint, count)) if count > 1 else contextlib.nullcontext()


def _texts(spec: Spec, classes: list[str], device: str) -> Texts | None:
    config = spec.evaluate.zero_shot
    if not config.text_tower:
        return None
    assert config.teacher is not None  # `missing` has seen to it
    names = config.class_names or [name.replace("_", " ") for name in classes]
    return Texts(config.teacher, text_embeddings(config.text_tower, names, config.templates, device))


def _as_json(result: EvaluateResult, use_ema: bool | None) -> dict[str, Any]:
    """``results.json``: everything that was measured."""
    found, checkpoint = result.found, result.checkpoint
    tables = {
        name: {model: asdict(value) for model, value in getattr(found, name).items()}
        for name in ("knn", "linear", "zero_shot", "correspondence", "segmentation", "change")
    }
    judged: dict[str, Any] = {"models": [row.as_json() for row in result.models]}
    if not result.models:
        judged = {"checkpoint": checkpoint.name, "ema": has_average(checkpoint) and use_ema is not False}
    return {
        **judged,
        **tables,
        "fidelity": {
            s: {t: {k: asdict(v) for k, v in kinds.items()} for t, kinds in by_teacher.items()}
            for s, by_teacher in found.fidelity.items()
        },
        "agreement": {name: [asdict(pair) for pair in pairs] for name, pairs in found.agreement.items()},
        "accuracy": result.accuracy,
        "accuracy_top5": found.accuracy_top5.get(TRAINED),
        "absent": found.absent,
    }


def _kpi(result: EvaluateResult) -> dict[str, float]:
    kpi = {f"knn/{name}": value.top1 for name, value in result.knn.items()}
    for row in result.models:
        kpi.update({f"models/{row.name}/{name}": value for name, value in row.figures().items()})
    for student, by_teacher in result.fidelity.items():
        for teacher, kinds in by_teacher.items():
            kpi.update({f"fidelity/{student}/{teacher}/{kind}": value.centered for kind, value in kinds.items()})
    if result.accuracy is not None:
        kpi["accuracy"] = result.accuracy
        kpi["accuracy/top5"] = result.found.accuracy_top5[TRAINED]
    found = result.found
    kpi.update({f"linear_probe/{name}": value.top1 for name, value in found.linear.items()})
    kpi.update({f"zero_shot/{name}": value.top1 for name, value in found.zero_shot.items()})
    kpi.update({f"miou/{name}": value.miou for name, value in found.segmentation.items()})
    kpi.update({f"change_f1/{name}": v.change_f1 for name, v in found.change.items() if v.change_f1 is not None})
    for name, value in found.correspondence.items():
        kpi.update({f"pck@{threshold:g}/{name}": share for threshold, share in value.pck.items()})
    for name, pairs in found.agreement.items():
        kpi.update({f"agreement/{name}/{pair.low}-{pair.high}": pair.agreement for pair in pairs})
    return kpi
