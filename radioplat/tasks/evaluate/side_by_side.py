"""Several models as rows of one table: kind, costs, metrics, and differences from the first model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from radioplat.errors import EngineError
from radioplat.evaluation.measure.findings import Findings
from radioplat.evaluation.measure.registry import METRICS
from radioplat.evaluation.metrics.metric import Column
from radioplat.evaluation.models.checkpoints import ListedModel
from radioplat.evaluation.models.detectors import DetectorModel
from radioplat.tracking.table import Table, show_cell


@dataclass
class Row:
    """One of ``evaluate.models``; base of the rows of students and detectors.

    Attributes:
        kind, bytes: see :class:`radioplat.evaluation.models.checkpoints.ListedModel`.
        size: side of its input in pixels; None for a student that did not run.
        difference: from the first model that ran, by the names of :meth:`figures`, times 100 (percentage points).
        state: of an engine, evaluated now, see :mod:`radioplat.exporting.engines.engine_record`; empty for others.
        kernels: of an engine: its convolution and GEMM kernels by data type; empty if unknown.
        milliseconds: of an engine: median latency of its smallest batch on this machine; None if it does not run here.
        warning: of an engine, see :class:`radioplat.evaluation.models.engine.EngineModel`; empty if there is none.
    """

    name: str
    kind: str
    path: str
    bytes: int
    size: int | None = None
    difference: dict[str, float] = field(default_factory=dict, kw_only=True)
    state: str = field(default="", kw_only=True)
    kernels: dict[str, int] = field(default_factory=dict, kw_only=True)
    milliseconds: float | None = field(default=None, kw_only=True)
    warning: str = field(default="", kw_only=True)

    @property
    def ran(self) -> bool:
        """Whether the model ran on this machine."""
        return self.size is not None

    def figures(self) -> dict[str, float]:
        """Return the measured values, by name."""
        raise NotImplementedError


@dataclass
class ModelRow(Row):
    """One student, teacher or file of ``evaluate.models``.

    Attributes:
        params, macs: of a checkpoint's backbone, for one image.
        measured: results by the ``row`` of a metric, a number or several by name; see :meth:`Findings.of_model`.
        absent: metrics that cannot be measured, with reasons.
    """

    params: int | None = None
    macs: int | None = None
    measured: dict[str, Any] = field(default_factory=dict)
    absent: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> ModelRow:
        """Read the result of :meth:`as_json`."""
        own = {f.name for f in fields(cls)}
        measured = {name: value for name, value in row.items() if name not in own}
        return cls(**{name: value for name, value in row.items() if name in own}, measured=measured)

    def figures(self) -> dict[str, float]:
        """Return the measured values by name: ``knn``, ``fidelity/<teacher>/<kind>``."""
        figures: dict[str, float] = {}
        for name, value in self.measured.items():
            parts = {f"{name}/{part}": v for part, v in value.items()} if isinstance(value, dict) else {name: value}
            figures |= {part: v for part, v in parts.items() if v is not None}
        return figures

    def as_json(self) -> dict[str, Any]:
        """Return everything, for ``results.json``."""
        content = asdict(self)
        return content | content.pop("measured")


def side_by_side(models: Sequence[ListedModel], findings: Findings) -> list[ModelRow]:
    """Return a row for each of ``models``, in their order; engines that ran are measured, if they were not here."""
    for model in models:
        if model.engine is not None and model.evaluated is not None:
            model.engine.measure()
    rows = [
        ModelRow(
            name=model.name,
            kind=model.kind,
            path=str(model.path),
            bytes=model.bytes,
            size=model.evaluated.size if model.evaluated else None,
            params=model.cost.params if model.cost else None,
            macs=model.cost.macs if model.cost else None,
            measured=findings.of_model(model.name),
            state=model.engine.state(model.evaluated is not None) if model.engine else "",
            kernels=model.engine.kernels if model.engine else {},
            milliseconds=model.engine.milliseconds if model.engine else None,
            warning=model.engine.warning if model.engine else "",
            absent=model.absent,
        )
        for model in models
    ]
    set_differences(rows)
    return rows


def set_differences(rows: Sequence[Row]) -> None:
    """Set the ``difference`` of each row from the first model that ran."""
    ran = [row for row in rows if row.ran]
    for row in ran[1:]:
        before = ran[0].figures()
        row.difference.update({name: 100 * (v - before[name]) for name, v in row.figures().items() if name in before})


def record_evaluations(models: Sequence[ListedModel | DetectorModel], rows: Sequence[Row]) -> list[str]:
    """Write its figures into the record of each engine that ran; return a line for each that cannot be written."""
    lines = []
    for model, row in zip(models, rows, strict=True):
        if model.engine is not None and row.ran:
            try:
                model.engine.remember(row.figures())
            except EngineError as error:
                lines.append(f"{row.name}: the evaluation cannot be written to its record: {error}")
    return lines


def models_tables(rows: Sequence[ModelRow]) -> list[Table]:
    """Return a table with one row a model, and that of their differences; a column without any value is left out."""
    measured = {title: column for metric in METRICS for title, column in metric.columns(rows).items()}
    columns: dict[str, list[Any]] = {
        "model": [row.name for row in rows],
        "kind": [row.kind for row in rows],
        "px": [row.size for row in rows],
        "MB": [f"{row.bytes / 1e6:.2f}" for row in rows],
        "params, M": [None if row.params is None else f"{row.params / 1e6:.3f}" for row in rows],
        "MACs, M": [None if row.macs is None else f"{row.macs / 1e6:.1f}" for row in rows],
        **{title: [column.value(row) for row in rows] for title, column in measured.items()},
        "ms": [None if row.milliseconds is None else f"{row.milliseconds:.3g}" for row in rows],
        "engine": [row.state or None for row in rows],
    }
    columns = {title: cells for title, cells in columns.items() if any(cell is not None for cell in cells)}
    table = Table(
        list(columns),
        [list(cells) for cells in zip(*columns.values(), strict=True)],
        title="Models side by side",
        note="Under a teacher's name: fidelity, the mean centered cosine of the head to it. Similar: the same between "
        "the backbone's features and the first model's. MB: on disk; a checkpoint is stored in fp32. "
        "params, MACs: of the backbone. ms: an engine's median latency for its smallest batch on this machine.",
    )
    return [table, *differences(rows, measured)]


def differences(rows: Sequence[Row], columns: Mapping[str, Column]) -> list[Table]:
    """Return a table of the differences from the first model that ran; none if there is no other."""
    ran = [row for row in rows if row.ran]
    cells = {title: [column.difference(row) for row in ran[1:]] for title, column in columns.items()}
    cells = {title.removesuffix(", %"): each for title, each in cells.items() if any(cell is not None for cell in each)}
    if not cells:
        return []
    lines = [list(line) for line in zip([row.name for row in ran[1:]], *cells.values(), strict=True)]
    note = "" if all(column.percent for column in columns.values()) else "Of a cosine: times 100."
    return [Table(["model", *cells], lines, f"Difference from {ran[0].name} in percentage points", note)]


def narrow(table: Table) -> Table:
    """Break cells and headings at their spaces, for a terminal."""
    rows = [[row[0], *(show_cell(cell).replace(" ", "\n") for cell in row[1:])] for row in table.rows]
    return Table([column.replace(" ", "\n", 1) for column in table.columns], rows, table.title, table.note)


def kernel_notes(row: Row) -> list[str]:
    """Return lines about the kernels of an engine; none for other models."""
    counts = ", ".join(f"{count} in {kind}" for kind, count in row.kernels.items())
    lines = [f"convolution and GEMM kernels: {counts}"] if counts else []
    return [f"{row.name}: {line}" for line in (*lines, *([row.warning] if row.warning else []))]


def model_notes(rows: Sequence[ModelRow]) -> list[str]:
    """Return lines about the kernels of engines and the reasons for empty cells."""
    return [line for row in rows for line in (*kernel_notes(row), *(f"{row.name}: {why}" for why in row.absent))]
