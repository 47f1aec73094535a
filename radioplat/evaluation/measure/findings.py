"""The results of an evaluation."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from radioplat.evaluation.measure.registry import METRICS
from radioplat.evaluation.measure.sample_maps import SampleMaps
from radioplat.evaluation.metrics.metric import Metric, Picture
from radioplat.evaluation.metrics.own_metrics import OwnMetrics
from radioplat.tracking.table import Table


@dataclass
class Findings:
    """Results of the metrics, with notes and pictures.

    Attributes:
        results: by the name of the metric; see the ``result`` of each.
        absent: a line for each result that was not measured, with the reason.
        pictures: of the metrics.
        sample: spatial features of a few images; None without pictures.
    """

    results: dict[str, Any] = field(default_factory=dict)
    absent: list[str] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    sample: SampleMaps | None = None

    @classmethod
    def of(cls, metrics: Sequence[Metric]) -> Findings:
        """Compute the result of each metric, after all images were added.

        Raises:
            RadioplatError: a result cannot be computed.
        """
        findings = cls()
        for metric in metrics:
            findings.results[metric.name] = metric.result()
            findings.absent += metric.notes
            findings.pictures += metric.pictures
        return findings

    def of_metric(self, metric: type[Metric]) -> Any:
        """Return the result of a metric; empty if it was not measured."""
        return self.results.get(metric.name, {})

    def tables(self, without: Collection[type[Metric]] = ()) -> list[Table]:
        """Return the tables that have rows; tables with the same title are joined.

        Args:
            without: metrics that are left out.
        """
        shown, tables = [metric for metric in METRICS if metric not in without], dict[str, Table]()
        for table in (t for metric in shown for t in metric.tables(self.of_metric(metric)) if t.rows):
            first = tables.get(table.title)
            if first is not None:
                table = Table(first.columns, [*first.rows, *table.rows], first.title, first.note)
            tables[table.title] = table
        return list(tables.values())

    def figures(self) -> dict[str, float]:
        """Return the figures for ``status.json``, by name."""
        return {name: v for metric in METRICS for name, v in metric.figures(self.of_metric(metric)).items()}

    def as_json(self) -> dict[str, Any]:
        """Return the content of ``results.json``."""
        results = {k: v for metric in METRICS for k, v in metric.as_json(self.of_metric(metric)).items()}
        return results | {"absent": self.absent}

    def of_model(self, model: str) -> dict[str, float | dict[str, float] | None]:
        """Return the figures of one model, by the ``row`` of each metric."""
        figures = {metric.row: metric.of_model(self.of_metric(metric), model) for metric in METRICS if metric.row}
        return {row: value for row, value in figures.items() if value or row != OwnMetrics.row}

    def objectives(self, model: str) -> dict[str, float]:
        """Return the values of one model for gates and objectives, by their names."""
        return {k: v for metric in METRICS for k, v in metric.objectives(self.of_metric(metric), model).items()}
