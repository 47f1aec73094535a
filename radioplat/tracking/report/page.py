"""``report.html``: the results of a run as one self-contained file."""

from __future__ import annotations

import base64
import datetime
import os
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from radioplat.common.redact import redact, redact_yaml
from radioplat.tracking.report.curves import Curve, draw_curves, group_curves
from radioplat.tracking.results import write_atomic
from radioplat.tracking.table import Table, show_cell

_NUMBER = re.compile(r"[-+]?[\d,]*\.?\d+(e[-+]?\d+)?( ?%)?")


def write_report(
    path: str | os.PathLike[str],
    *,
    title: str,
    tables: Sequence[Table] = (),
    curves: Mapping[str, Curve] | None = None,
    images_per_step: int = 0,
    pictures: Sequence[tuple[str, bytes]] = (),
    spec_yaml: str = "",
    notes: Sequence[str] = (),
    headline: str = "",
    remarks: Sequence[str] = (),
) -> Path:
    """Write a self-contained page, with CSS and pictures and without scripts; the file is replaced atomically.

    Args:
        path: of the page; the folder is created.
        title: heading of the page.
        tables: results, in order.
        curves: ``{metric: [(step, value), ...]}`` from :func:`radioplat.tracking.report.curves.curves_from_status`.
        images_per_step: global batch size of the run that ``curves`` belong to; 0 if unknown.
        pictures: ``(caption, PNG bytes)``.
        spec_yaml: the spec, in a collapsed section; secrets are masked.
        notes: lines under the heading.
        headline: the result in a sentence; pictures follow it.
        remarks: lines at the end, what was not measured for example.

    Returns:
        ``path``.
    """
    for table in tables:
        for row in table.rows:
            if len(row) != len(table.columns):
                sizes = f"{len(row)} cells for {len(table.columns)} columns"
                raise ValueError(f"a row of table {table.title!r} has {sizes}")
    charts = [(name, draw_curves(name, lines, images_per_step)) for name, lines in group_curves(curves or {}).items()]
    return write_page(
        path,
        "radioplat.tracking.report",
        "report.html.j2",
        title=title,
        notes=notes,
        headline=redact(headline),
        remarks=[redact(remark) for remark in remarks],
        tables=tables,
        charts=charts,
        pictures=pictures,
        spec=redact_yaml(spec_yaml),
    )


def write_page(
    path: str | os.PathLike[str], package: str, template: str, *, title: str, notes: Sequence[str], **values: Any
) -> Path:
    """Write a page from a Jinja template, with the style and filters of all pages.

    Args:
        package, template: location of the template; it gets ``css``, ``title``, ``notes``, ``written`` and ``values``.
    """
    from jinja2 import Environment

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"cell": show_cell, "png": _data_uri, "least_width": _least_width, "numeric": _is_numeric}
    page = environment.from_string((resources.files(package) / template).read_text(encoding="utf-8")).render(
        css=(resources.files("radioplat.tracking.report") / "page.css").read_text(encoding="utf-8"),
        title=redact(title),
        notes=[redact(note) for note in notes],
        written=datetime.datetime.now().strftime("%Y-%m-%d %H:%M"),
        **values,
    )
    return write_atomic(path, page)


def _is_numeric(table: Table, column: int) -> bool:
    """Return whether every cell of a column is a number, or missing."""
    cells = [row[column] for row in table.rows if row[column] is not None]
    return bool(cells) and all(not isinstance(cell, bool) and _NUMBER.fullmatch(str(cell)) for cell in cells)


def _data_uri(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")


def _least_width(png: bytes) -> int:
    """Return a third of a picture's width in pixels; a narrower page scrolls it, so that its text is readable."""
    return int.from_bytes(png[16:20], "big") // 3
