"""The task ``evaluate`` for detectors in ``evaluate.models``: mAP and boxes of each on the same images."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from radioplat.common.cpu_threads import decode_threads, limit_torch_threads
from radioplat.data.detection.detection_set import DetectionSet
from radioplat.data.detection.split import read_split
from radioplat.errors import SpecError
from radioplat.evaluation.detection.detection_errors import DetectionErrors, detection_errors
from radioplat.evaluation.detection.measure_detector import DetectionResult, measure_detector
from radioplat.evaluation.metrics.metric import Column
from radioplat.evaluation.models.detectors import DetectorModel, open_detectors
from radioplat.evaluation.pictures.boxes_panel import boxes_panel
from radioplat.models.vision_model import model_kind
from radioplat.spec.loading.load import to_yaml
from radioplat.spec.schema.evaluate import MetricName
from radioplat.spec.schema.root import Spec
from radioplat.tasks.evaluate.evaluation import finite
from radioplat.tasks.evaluate.side_by_side import Row, differences, kernel_notes, record_evaluations, set_differences
from radioplat.tracking.report.page import write_report
from radioplat.tracking.results import TaskFolder, write_atomic
from radioplat.tracking.table import Table
from radioplat.tracking.task_log import log_task


@dataclass
class DetectorRow(Row):
    """One detector of ``evaluate.models``.

    Attributes:
        result: None if it did not run on this machine.
        right, spurious, missed: correct and wrong boxes, and objects without a box, at the report's ``threshold``.
        absent: the reason why it did not run.
    """

    result: DetectionResult | None = None
    right: int | None = None
    spurious: int | None = None
    missed: int | None = None
    absent: str = ""

    @property
    def ran(self) -> bool:
        """Whether the model ran on this machine."""
        return self.result is not None

    def figures(self) -> dict[str, float]:
        """See :meth:`DetectionResult.kpi`."""
        return self.result.kpi() if self.result else {}

    def as_json(self) -> dict[str, Any]:
        """Return everything but the boxes, for ``results.json``."""
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
    """Result of the evaluation of several detectors.

    Attributes:
        models: a row for each of ``evaluate.models``, in its order.
        classes: names of the classes, by index.
        images: number of evaluated images.
        threshold: the score at which the first model's boxes have the highest F1; boxes of all models with at least
            this score are counted and drawn.
        report: path of ``report.html``.
        faults: annotations that were left out.
        absent: engine records that could not be written, with reasons.
    """

    models: list[DetectorRow]
    classes: tuple[str, ...]
    images: int
    threshold: float
    report: Path
    faults: str
    absent: Sequence[str] = ()

    @property
    def metrics(self) -> dict[str, float]:
        """Finite values by the names that gates and sweeps compare: ``knn``, ``fidelity``, ``mAP``, ..."""
        return finite(self.objectives())

    def tables(self) -> list[Table]:
        """See :class:`radioplat.tasks.evaluate.evaluation.Evaluation`: a row a model, then one a class and model."""
        figures = {"mAP": "mAP", "mAP50": "mAP50", "mAP75": "mAP75", "VOC mAP": "voc/mAP"}
        shown = {heading: Column(figure, percent=True) for heading, figure in figures.items()}
        rows = [
            [
                *(r.name, r.kind, r.size, f"{r.bytes / 1e6:.2f}"),
                *(column.value(r) for column in shown.values()),
                *(r.right, r.spurious, r.missed),
            ]
            for r in self.models
        ]
        head = ["model", "kind", "px", "MB", *shown, "right", "spurious", "missed"]
        if any(row.state for row in self.models):
            head.append("engine")
            rows = [[*cells, row.state or None] for cells, row in zip(rows, self.models, strict=True)]
        note = (
            f"Percent, on {self.images} images. "
            f"Right, spurious, missed: boxes with a score of at least {self.threshold:.3g}, where the first model's F1 "
            "is highest, and objects without one, at IoU 0.5."
        )
        ran = [row for row in self.models if row.ran]
        by_class = [
            [name, row.name, *(Column(f"{kind}/{name}", percent=True).value(row) for kind in ("mAP", "voc/AP"))]
            for name in self.classes
            for row in ran
        ]
        class_note = "Percent. VOC's AP is the area, IoU 0.5."
        return [
            Table(head, rows, "Detectors side by side", note),
            *differences(self.models, shown),
            Table(["class", "model", "mAP", "VOC AP"], by_class, "By class", class_note),
        ]

    def notes(self) -> list[str]:
        """See :class:`radioplat.tasks.evaluate.evaluation.Evaluation`."""
        lines = [f"annotations: {self.faults}"]
        for row in self.models:
            lines += kernel_notes(row)
            if row.absent:
                lines.append(f"{row.name}: {row.absent}")
            if row.result:
                lines += [f"{row.name}: {count} images left out: {why}" for why, count in row.result.unreadable.items()]
                if row.result.coco.unusable:
                    lines.append(f"{row.name}: {row.result.coco.unusable} boxes are not finite or have no area")
        return [*lines, *self.absent]

    def figures(self) -> dict[str, float]:
        """See :class:`radioplat.tasks.evaluate.evaluation.Evaluation`."""
        return {f"models/{row.name}/{name}": v for row in self.models for name, v in row.figures().items()}

    def objectives(self) -> dict[str, float | None]:
        """See :class:`radioplat.tasks.evaluate.evaluation.Evaluation`."""
        checkpoints = [row.result for row in self.models if row.result and model_kind(row.path)]
        return {MetricName.mAP.value: checkpoints[-1].coco.map} if checkpoints else {}

    def facts(self) -> dict[str, Any]:
        """See :class:`radioplat.tasks.evaluate.evaluation.Evaluation`."""
        return {
            "models": [row.as_json() for row in self.models],
            "tables": [dataclasses.asdict(table) for table in self.tables()],
        }


def evaluate_detectors(spec: Spec) -> DetectorsReport:
    """Run task ``evaluate`` for the detectors in ``evaluate.models``.

    Raises:
        SpecError: a model is not a detector, cannot be read, or has other classes than the images.
        DataError: the split cannot be read.
    """
    folder = TaskFolder(spec.results_dir, "evaluate", spec.evaluate.results_dir)
    return log_task(folder, "evaluate", to_yaml(spec), lambda: _evaluate(spec, folder), DetectorsReport.figures)


def open_inputs(spec: Spec, device: str) -> tuple[list[DetectorModel], DetectionSet]:
    """Open the detectors of ``evaluate.models`` and the annotated images.

    Raises:
        RadioplatError: one of them cannot be opened, or the images have classes that no detector has.
    """
    models, dataset = open_detectors(spec, device), spec.dataset
    names = next((model.class_names for model in models if model.class_names), tuple(dataset.classes))
    split = read_split(dataset.val_dataset, names, "dataset.val_dataset")
    if len(split.classes) > models[0].num_classes:  # a detector may have further classes, which no object has
        message = f"it has {models[0].num_classes} classes, and dataset.val_dataset has {len(split.classes)}"
        raise SpecError(message, where=f"{models[0].where}.path")
    return models, split


def _evaluate(spec: Spec, folder: TaskFolder) -> DetectorsReport:
    models, split = open_inputs(spec, "cuda" if torch.cuda.is_available() else "cpu")
    dataset = spec.dataset
    if spec.evaluate.max_images is not None:
        split = dataclasses.replace(split, pictures=split.pictures[: spec.evaluate.max_images])
    batch = spec.evaluate.batch_size or dataset.val_batch_size or dataset.batch_size
    threads = decode_threads(dataset.workers)
    results: list[DetectionResult | None] = []
    with limit_torch_threads(threads):
        for model in models:
            detect = model.detect
            results.append(detect and measure_detector(detect, split, model.size, batch, threads, dataset.max_pixels))
    errors = [detection_errors(r.truth, r.detections, len(split.classes)) if r else None for r in results]
    threshold = next(each for each in errors if each).best_threshold()
    rows = [_row(*each, threshold) for each in zip(models, results, errors, strict=True)]
    set_differences(rows)
    absent = record_evaluations(models, rows)
    images = next(each.images for each in results if each)
    report = DetectorsReport(rows, split.classes, images, threshold, folder.report_path, str(split.faults), absent)
    _write(spec, folder, report)
    return report


def _row(
    model: DetectorModel, result: DetectionResult | None, errors: DetectionErrors | None, threshold: float
) -> DetectorRow:
    row = DetectorRow(model.name, model.kind, str(model.path), model.bytes, model.size, absent=model.absent)
    if model.engine:
        if result is not None:
            model.engine.measure()  # before its warnings are read
        row.state, row.kernels = model.engine.state(bool(result)), model.engine.kernels
        row.warning = model.engine.warning
    if result is not None and errors is not None:
        row.result = result
        row.right, row.spurious, row.missed = errors.counts(threshold)
    return row


def _write(spec: Spec, folder: TaskFolder, report: DetectorsReport) -> None:
    content = {
        "classes": report.classes,
        "images": report.images,
        "threshold": report.threshold,
        "faults": report.faults,
    }
    content |= {"models": [row.as_json() for row in report.models], "absent": report.notes()[1:]}
    write_atomic(folder.path / "results.json", json.dumps(content, indent=1))
    ran = {row.name: row.result for row in report.models if row.result}
    first = next(iter(ran.values()))
    count = min(spec.evaluate.pictures, len(first.pictures))
    pictures = []
    if count:
        detections = {name: result.detections[:count] for name, result in ran.items()}
        png = boxes_panel(first.pictures[:count], detections, report.classes, report.threshold, spec.dataset.max_pixels)
        caption = f"Boxes with a score of at least {report.threshold:.3g}: blue annotated, green right, red spurious"
        pictures = [(caption, png)]
    write_report(
        folder.report_path,
        title="radioplat: detectors side by side",
        tables=report.tables(),
        pictures=pictures,
        spec_yaml=to_yaml(spec),
        notes=report.notes(),
    )
