"""The task ``evaluate`` where ``evaluate.models`` are detectors: mAP and boxes of each on the same images."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from radioplat.common.cpu_threads import decode_threads, limit_torch_threads
from radioplat.data.detection.split import read_split
from radioplat.errors import EngineError, SpecError
from radioplat.evaluation.detection.detection_errors import Verdicts, verdicts
from radioplat.evaluation.detection.find import DetectionResult, judge
from radioplat.evaluation.models.detectors import DetectorModel, open_detectors
from radioplat.evaluation.pictures.boxes import boxes_panel
from radioplat.spec.loading.load import to_yaml
from radioplat.spec.schema.root import Spec
from radioplat.tracking.report.page import Table, write_report
from radioplat.tracking.results import TaskFolder, write_atomic
from radioplat.tracking.task_log import keep_diary


@dataclass(frozen=True)
class DetectorRow:
    """What one of ``evaluate.models`` came to.

    Attributes:
        kind, bytes, size: see :class:`radioplat.evaluation.models.detectors.DetectorModel`.
        result: None where it did not run here.
        right, spurious, missed: boxes that are right and that are not, and objects without one, where a score of the
            report's ``threshold`` is enough.
        difference: from the first model that ran, by the names of :meth:`figures`, in percentage points.
        state: of an engine: :func:`radioplat.exporting.engines.record.state_of`, evaluated now; empty for others.
        kernels: of an engine: its convolution and GEMM kernels by data type.
        absent: what it cannot tell and why.
    """

    name: str
    kind: str
    path: str
    bytes: int
    size: int
    result: DetectionResult | None = None
    right: int | None = None
    spurious: int | None = None
    missed: int | None = None
    difference: dict[str, float] = field(default_factory=dict)
    state: str = ""
    kernels: dict[str, int] = field(default_factory=dict)
    absent: str = ""

    def figures(self) -> dict[str, float]:
        """See :meth:`DetectionResult.kpi`."""
        return self.result.kpi() if self.result else {}

    def as_json(self) -> dict[str, Any]:
        """Everything but the boxes."""
        own = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "result"}
        if self.result is None:
            return own
        return own | {
            "coco": dataclasses.asdict(self.result.coco),
            "voc": self.result.voc,
            "unreadable": self.result.unreadable,
        }


@dataclass(frozen=True)
class DetectorsReport:
    """What an evaluation of several detectors found.

    Attributes:
        models: a row for each of ``evaluate.models``, in its order.
        threshold: the score from which the first model's boxes have the highest F1; boxes of all models are counted
            and drawn from it on.
        report: path of ``report.html``.
        faults: what was left out of the annotations, in words.
        absent: what could not be written down and why.
    """

    models: list[DetectorRow]
    classes: tuple[str, ...]
    images: int
    threshold: float
    report: Path
    faults: str
    absent: tuple[str, ...] = ()


def evaluate_detectors(spec: Spec) -> DetectorsReport:
    """Task ``evaluate`` where ``evaluate.models`` are detectors.

    Raises:
        SpecError: a model is none, cannot be read, or knows other classes than the images.
        DataError: the split cannot be read.
    """
    folder = TaskFolder(spec.results_dir, "evaluate", spec.evaluate.results_dir)

    def kpi(made: DetectorsReport) -> dict[str, float]:
        """By model."""
        return {f"models/{row.name}/{name}": v for row in made.models for name, v in row.figures().items()}

    return keep_diary(folder, "evaluate", to_yaml(spec), lambda: _evaluate(spec, folder), kpi)


def _evaluate(spec: Spec, folder: TaskFolder) -> DetectorsReport:
    models, dataset = open_detectors(spec, "cuda" if torch.cuda.is_available() else "cpu"), spec.dataset
    names = next((model.class_names for model in models if model.class_names), tuple(dataset.classes))
    split = read_split(dataset.val_dataset, names, "dataset.val_dataset")
    if len(split.classes) != models[0].num_classes:
        said = f"it has {models[0].num_classes} classes, and dataset.val_dataset has {len(split.classes)}"
        raise SpecError(said, where=f"{models[0].where}.path")
    if spec.evaluate.max_images is not None:
        split = dataclasses.replace(split, pictures=split.pictures[: spec.evaluate.max_images])
    batch = spec.evaluate.batch_size or dataset.val_batch_size or dataset.batch_size
    threads = decode_threads(dataset.workers)
    results: list[DetectionResult | None] = []
    with limit_torch_threads(threads):
        for model in models:
            detect = model.detect
            results.append(detect and judge(detect, split, model.size, batch, threads, dataset.max_pixels))
    told = [verdicts(r.truth, r.found, len(split.classes)) if r else None for r in results]
    first = next(each for each in told if each)
    threshold = first.best_threshold()
    rows = [_row(*each, threshold) for each in zip(models, results, told, strict=True)]
    ran = [row for row in rows if row.result]
    for row in ran[1:]:
        start = ran[0].figures()
        row.difference.update({k: 100 * (v - start[k]) for k, v in row.figures().items() if k in start})
    absent = _remembered(models, rows)
    images = next(each.images for each in results if each)
    made = DetectorsReport(rows, split.classes, images, threshold, folder.report_path, str(split.faults), absent)
    _write(spec, folder, made)
    return made


def _row(model: DetectorModel, result: DetectionResult | None, told: Verdicts | None, threshold: float) -> DetectorRow:
    row = DetectorRow(model.name, model.kind, str(model.path), model.bytes, model.size, absent=model.absent)
    if model.engine:
        row = dataclasses.replace(row, state=model.engine.state(bool(result)), kernels=model.engine.kernels)
    if result is None or told is None:
        return row
    right, spurious, missed = told.counts(threshold)
    return dataclasses.replace(row, result=result, right=right, spurious=spurious, missed=missed)


def _remembered(models: Sequence[DetectorModel], rows: Sequence[DetectorRow]) -> tuple[str, ...]:
    """Have the records of engines that were evaluated say so; a line for each that cannot be written."""
    lines = []
    for model, row in zip(models, rows, strict=True):
        if model.engine is not None and row.result is not None:
            try:
                model.engine.remember(row.figures())
            except EngineError as error:
                lines.append(f"{row.name}: its record does not say that it was evaluated: {error}")
    return tuple(lines)


def side_tables(made: DetectorsReport) -> list[Table]:
    """One row a model, then one row a class."""
    head = ["model", "kind", "px", "MB", "mAP", "mAP50", "mAP75", "VOC mAP", "right", "spurious", "missed"]
    shown = ("mAP", "mAP50", "mAP75", "voc/mAP")
    rows = [
        [r.name, r.kind, r.size, f"{r.bytes / 1e6:.2f}", *(_figure(r, n) for n in shown), r.right, r.spurious, r.missed]
        for r in made.models
    ]
    if any(row.state for row in made.models):
        head.append("engine")
        rows = [[*cells, row.state or None] for cells, row in zip(rows, made.models, strict=True)]
    note = (
        f"Percent, on {made.images} images; in brackets the difference from the first model in percentage points. "
        f"Right, spurious, missed: boxes with a score of at least {made.threshold:.3g}, where the first model's F1 is "
        "highest, and objects without one, at IoU 0.5."
    )
    ran = [row for row in made.models if row.result]
    of_class = [
        [name, *(" / ".join(_figure(row, f"{kind}/{name}") or "-" for kind in ("mAP", "voc/AP")) for row in ran)]
        for name in made.classes
    ]
    told = "COCO's mAP / VOC's AP (the area, IoU 0.5), percent."
    return [
        Table(head, rows, "Detectors side by side", note),
        Table(["class", *(row.name for row in ran)], of_class, "By class", told),
    ]


def remarks(made: DetectorsReport) -> list[str]:
    """Which kernels engines have, and what could not be had, a line each."""
    lines = [f"annotations: {made.faults}"]
    for row in made.models:
        if row.kernels:
            counts = ", ".join(f"{count} in {kind}" for kind, count in row.kernels.items())
            lines.append(f"{row.name}: convolution and GEMM kernels: {counts}")
        if row.absent:
            lines.append(f"{row.name}: {row.absent}")
        if row.result:
            lines += [f"{row.name}: {count} images left out: {why}" for why, count in row.result.unreadable.items()]
            if row.result.coco.unusable:
                lines.append(f"{row.name}: {row.result.coco.unusable} boxes are not finite or have no area")
    return [*lines, *made.absent]


def _figure(row: DetectorRow, name: str) -> str | None:
    value, difference = row.figures().get(name), row.difference.get(name)
    if value is None:
        return None
    return f"{100 * value:.1f}" + ("" if difference is None else f" ({round(difference, 1) + 0.0:+.1f})")  # no -0.0


def _write(spec: Spec, folder: TaskFolder, made: DetectorsReport) -> None:
    content = {"classes": made.classes, "images": made.images, "threshold": made.threshold, "faults": made.faults}
    content |= {"models": [row.as_json() for row in made.models], "absent": remarks(made)[1:]}
    write_atomic(folder.path / "results.json", json.dumps(content, indent=1))
    ran = {row.name: row.result for row in made.models if row.result}
    first = next(iter(ran.values()))
    count = min(spec.evaluate.pictures, len(first.pictures))
    pictures = []
    if count:
        found = {name: result.found[:count] for name, result in ran.items()}
        png = boxes_panel(first.pictures[:count], found, made.classes, made.threshold, spec.dataset.max_pixels)
        said = f"Boxes with a score of at least {made.threshold:.3g}: blue the truth, green right, red spurious"
        pictures = [(said, png)]
    write_report(
        folder.report_path,
        title="radioplat: detectors side by side",
        tables=side_tables(made),
        pictures=pictures,
        spec_yaml=to_yaml(spec),
        notes=remarks(made),
    )
