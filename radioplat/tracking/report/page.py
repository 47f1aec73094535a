"""``report.html``: one file that shows what a run came to, readable without a network or a server."""

from __future__ import annotations

import base64
import datetime
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from radioplat.common.redact import redact, redact_yaml
from radioplat.tracking.report.curves import Curve, draw_curves, group_curves
from radioplat.tracking.results import write_atomic


@dataclass(frozen=True)
class Table:
    """One table of the report.

    Attributes:
        columns: headings; the first column names the row.
        rows: cells; floats are shown with four digits, None as a dash, anything else by ``str``.
        title: heading above the table.
        note: a line below it, e.g. what a measure means.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    title: str = ""
    note: str = ""


def write_report(
    path: str | os.PathLike[str],
    *,
    title: str,
    tables: Sequence[Table] = (),
    curves: Mapping[str, Curve] | None = None,
    pictures: Sequence[tuple[str, bytes]] = (),
    spec_yaml: str = "",
    notes: Sequence[str] = (),
) -> Path:
    """Write a self-contained page (CSS and pictures inside it, no script). The old file is replaced in one step.

    Args:
        path: where to; the folder is created.
        title: heading of the page.
        tables: results, in order.
        curves: ``{kpi name: [(step, value), ...]}`` as :func:`radioplat.tracking.report.curves.curves_from_status`
            gives them; drawn one chart a teacher.
        pictures: ``(caption, PNG bytes)``.
        spec_yaml: the spec, shown folded; secrets are masked.
        notes: lines under the heading: which run, where its files are.

    Returns:
        ``path``.
    """
    for table in tables:
        for row in table.rows:
            if len(row) != len(table.columns):
                sizes = f"{len(row)} cells for {len(table.columns)} columns"
                raise ValueError(f"a row of table {table.title!r} has {sizes}")
    charts = [(name, draw_curves(name, lines)) for name, lines in group_curves(curves or {}).items()]
    return write_page(
        path,
        "radioplat.tracking.report",
        "report.html.j2",
        title=title,
        notes=notes,
        tables=tables,
        charts=charts,
        pictures=pictures,
        spec=redact_yaml(spec_yaml),
    )


def write_page(
    path: str | os.PathLike[str], package: str, template: str, *, title: str, notes: Sequence[str], **values: Any
) -> Path:
    """Write one page from a template of ours, with the style and the filters that all pages share.

    Args:
        package, template: where the template lies; it shows ``css``, ``title``, ``notes`` and ``written`` beside
            ``values``.
    """
    from jinja2 import Environment

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"cell": show_cell, "png": _data_uri}
    environment.tests["numeric"] = _is_numeric
    page = environment.from_string((resources.files(package) / template).read_text(encoding="utf-8")).render(
        css=(resources.files("radioplat.tracking.report") / "page.css").read_text(encoding="utf-8"),
        title=redact(title),
        notes=[redact(note) for note in notes],
        written=datetime.datetime.now().strftime("%Y-%m-%d %H:%M"),
        **values,
    )
    return write_atomic(path, page)


def show_cell(value: Any) -> str:
    """A cell as a person reads it: four significant digits, a dash for nothing, thousands apart."""
    if value is None:
        return "\N{EN DASH}"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if not math.isfinite(value):
        return str(value)
    if value != 0 and not 1e-3 <= abs(value) < 1e6:
        return f"{value:.3g}"
    digits = 3 if abs(value) < 10 else 2 if abs(value) < 100 else 1 if abs(value) < 1000 else 0
    return f"{value:,.{digits}f}"


def _is_numeric(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))


def _data_uri(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")
