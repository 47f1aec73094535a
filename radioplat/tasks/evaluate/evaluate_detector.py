"""The task ``evaluate`` for one detector: mAP and VOC's average precision on ``dataset.val_dataset``."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from radioplat.common.ranks import Ranks
from radioplat.evaluation.detection.measure_detector import DetectionResult, measure_checkpoint
from radioplat.spec.loading.load import to_yaml
from radioplat.spec.schema.evaluate import MetricName
from radioplat.spec.schema.root import Spec
from radioplat.tasks.evaluate.evaluation import finite
from radioplat.tracking.report.page import write_report
from radioplat.tracking.results import TaskFolder, write_atomic
from radioplat.tracking.table import Table
from radioplat.tracking.task_log import log_task


@dataclass(frozen=True)
class DetectorReport:
    """Result of the evaluation of one detector.

    Attributes:
        checkpoint: the detector that was evaluated.
        result: COCO's and VOC's measures, number of images, unreadable images.
        report: path of ``report.html``.
        faults: annotations that were left out.
    """

    checkpoint: Path
    result: DetectionResult
    report: Path
    faults: str

    @property
    def unreadable(self) -> str:
        """Number of images that could not be decoded, by reason."""
        reasons = sorted(self.result.unreadable.items())
        return ", ".join(f"{count} {reason}" for reason, count in reasons) or "none"

    @property
    def metrics(self) -> dict[str, float]:
        """Finite values by the names that gates and sweeps compare: ``knn``, ``fidelity``, ``mAP``, ..."""
        return finite(self.objectives())

    def tables(self) -> list[Table]:
        """See :class:`radioplat.tasks.evaluate.evaluation.Evaluation`."""
        result, coco = self.result, self.result.coco
        sizes = ("mAP", "mAP50", "mAP75", "small", "medium", "large", "recall")
        figures = (coco.map, coco.map50, coco.map75, coco.small, coco.medium, coco.large, coco.recall)
        by_class = [*zip(result.classes, coco.by_class, coco.by_class50, result.voc, strict=True)]
        return [
            Table(("images", *sizes), [(result.images, *figures)], "Detection", "COCO's measures, by pycocotools."),
            Table(("class", "mAP", "mAP50", "VOC AP"), by_class, "By class", "VOC's AP is the area, IoU 0.5."),
        ]

    def notes(self) -> list[str]:
        """See :class:`radioplat.tasks.evaluate.evaluation.Evaluation`."""
        lines = [f"annotations: {self.faults}"]
        return [*lines, f"unreadable images: {self.unreadable}"] if self.result.unreadable else lines

    def figures(self) -> dict[str, float]:
        """See :class:`radioplat.tasks.evaluate.evaluation.Evaluation`."""
        return self.result.kpi()

    def objectives(self) -> dict[str, float | None]:
        """See :class:`radioplat.tasks.evaluate.evaluation.Evaluation`."""
        return {MetricName.mAP.value: self.result.coco.map}

    def facts(self) -> dict[str, Any]:
        """See :class:`radioplat.tasks.evaluate.evaluation.Evaluation`."""
        return {}


def evaluate_detector(spec: Spec, checkpoint: Path) -> DetectorReport:
    """Run task ``evaluate`` for the checkpoint of a detector."""
    folder = TaskFolder(spec.results_dir, "evaluate", spec.evaluate.results_dir)
    ranks = Ranks(device=torch.device("cuda" if torch.cuda.is_available() else "cpu"))

    def action() -> DetectorReport:
        """Measure and write the files."""
        result, faults = measure_checkpoint(spec, checkpoint, spec.evaluate.use_ema, ranks)
        report = DetectorReport(checkpoint, result, folder.report_path, faults)
        _write(spec, folder, report)
        return report

    return log_task(folder, "evaluate", to_yaml(spec), action, DetectorReport.figures)


def _write(spec: Spec, folder: TaskFolder, report: DetectorReport) -> None:
    checkpoint, result = report.checkpoint, report.result
    notes = [f"{checkpoint}", f"annotations: {report.faults}", f"unreadable images: {report.unreadable}"]
    coco = dataclasses.asdict(result.coco)
    content = {"checkpoint": checkpoint.name, "classes": result.classes, "images": result.images, "coco": coco}
    content |= {"voc": result.voc, "unreadable": result.unreadable, "faults": report.faults}
    write_atomic(folder.path / "results.json", json.dumps(content, indent=1))
    write_report(
        folder.report_path,
        title=f"radioplat: detector {checkpoint.name}",
        tables=report.tables(),
        spec_yaml=to_yaml(spec),
        notes=notes,
    )
