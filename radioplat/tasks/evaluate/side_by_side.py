"""Several models as the rows of one table: what each is, what it takes, and how far it is from the first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from radioplat.evaluation.measure.findings import Findings
from radioplat.evaluation.models.checkpoints import ListedModel
from radioplat.tracking.report.page import Table


@dataclass(frozen=True)
class ModelRow:
    """One of ``evaluate.models``.

    Attributes:
        kind, bytes: see :class:`radioplat.evaluation.models.checkpoints.ListedModel`.
        size: pixels a side of what it saw; None where it did not run.
        params, macs: of a checkpoint's backbone, and one image.
        fidelity: by ``<teacher>/<kind>``, in [-1, 1].
        knn, linear_probe, accuracy: top-1 in [0, 1]; None where it was not measured.
        likeness: mean centred cosine of backbone features to the first model's, by kind; empty where widths differ.
        difference: from the first model that ran, by the names of :meth:`figures`, in percentage points.
        state: of an engine: :func:`radioplat.exporting.engines.record.state_of`, evaluated now; empty for others.
        kernels: of an engine: its convolution and GEMM kernels by data type; empty where its builder does not tell.
        absent: what it cannot tell and why.
    """

    name: str
    kind: str
    path: str
    bytes: int
    size: int | None = None
    params: int | None = None
    macs: int | None = None
    fidelity: dict[str, float] = field(default_factory=dict)
    knn: float | None = None
    linear_probe: float | None = None
    accuracy: float | None = None
    likeness: dict[str, float] = field(default_factory=dict)
    difference: dict[str, float] = field(default_factory=dict)
    state: str = ""
    kernels: dict[str, int] = field(default_factory=dict)
    absent: tuple[str, ...] = ()

    def figures(self) -> dict[str, float]:
        """What was measured, by name: ``knn``, ``linear_probe``, ``accuracy``, ``fidelity/<teacher>/<kind>``,
        ``likeness/<kind>``."""
        shares = {"knn": self.knn, "linear_probe": self.linear_probe, "accuracy": self.accuracy}
        return {
            **{name: value for name, value in shares.items() if value is not None},
            **{f"fidelity/{name}": value for name, value in self.fidelity.items()},
            **{f"likeness/{kind}": value for kind, value in self.likeness.items()},
        }

    def as_json(self) -> dict[str, Any]:
        """Everything, for ``results.json``."""
        return asdict(self)


def side_by_side(models: Sequence[ListedModel], found: Findings) -> list[ModelRow]:
    """A row for each of ``models``, in their order."""
    rows = [_row(model, found) for model in models]
    ran = [row for row in rows if row.size is not None]
    first = ran[0].figures() if ran else {}
    for row in ran[1:]:
        row.difference.update({k: 100 * (v - first[k]) for k, v in row.figures().items() if k in first})
    return rows


def models_table(rows: Sequence[ModelRow]) -> Table:
    """One row a model; a column that no model has anything for is left out."""
    heads = list(dict.fromkeys(name for row in rows for name in row.fidelity))
    columns: dict[str, list[Any]] = {
        "model": [row.name for row in rows],
        "kind": [row.kind for row in rows],
        "px": [row.size for row in rows],
        "MB": [f"{row.bytes / 1e6:.2f}" for row in rows],
        "params, M": [None if row.params is None else f"{row.params / 1e6:.3f}" for row in rows],
        "MACs, M": [None if row.macs is None else f"{row.macs / 1e6:.1f}" for row in rows],
        **{head.replace("/", " "): [_figure(row, f"fidelity/{head}", 3) for row in rows] for head in heads},
        "kNN, %": [_figure(row, "knn", 1) for row in rows],
        "linear probe, %": [_figure(row, "linear_probe", 1) for row in rows],
        "top-1, %": [_figure(row, "accuracy", 1) for row in rows],
        "likeness": ["/".join(f"{row.likeness[k]:.3f}" for k in row.likeness) or None for row in rows],
        "engine": [row.state or None for row in rows],
    }
    kept = {title: cells for title, cells in columns.items() if any(cell is not None for cell in cells)}
    return Table(
        list(kept),
        [list(cells) for cells in zip(*kept.values(), strict=True)],
        title="Models side by side",
        note="In brackets the difference from the first model in percentage points. Under a teacher's name: fidelity, "
        "the mean centred cosine of the head to it (times 100 in brackets). Likeness: the same of the backbone's "
        "summary / map to the first model's. MB: on disk; a checkpoint holds fp32 whatever it is judged in. params, "
        "MACs: of the backbone.",
    )


def remarks(rows: Sequence[ModelRow]) -> list[str]:
    """Which kernels engines have, and why cells are empty, a line each."""
    lines = []
    for row in rows:
        if row.kernels:
            counts = ", ".join(f"{count} in {kind}" for kind, count in row.kernels.items())
            lines.append(f"{row.name}: convolution and GEMM kernels: {counts}")
        lines += [f"{row.name}: {line}" for line in row.absent]
    return lines


def _figure(row: ModelRow, name: str, digits: int) -> str | None:
    value = row.figures().get(name)
    if value is None:
        return None
    shown = f"{value if digits == 3 else 100 * value:.{digits}f}"
    difference = row.difference.get(name)
    return shown if difference is None else f"{shown} ({round(difference, 1) + 0.0:+.1f})"  # no -0.0


def _row(model: ListedModel, found: Findings) -> ModelRow:
    name, likeness = model.name, found.likeness.get(model.name, {})
    fidelity = {
        f"{teacher}/{kind}": value.centered
        for teacher, kinds in found.fidelity.get(name, {}).items()
        for kind, value in kinds.items()
    }
    return ModelRow(
        name,
        model.kind,
        str(model.path),
        model.bytes,
        model.evaluated.size if model.evaluated else None,
        model.cost.params if model.cost else None,
        model.cost.macs if model.cost else None,
        fidelity,
        found.knn[name].top1 if name in found.knn else None,
        found.linear[name].top1 if name in found.linear else None,
        found.accuracy.get(name),
        {kind: value.centered for kind, value in likeness.items()},
        {},
        model.engine.state(model.evaluated is not None) if model.engine else "",
        model.engine.kernels if model.engine else {},
        model.absent,
    )
