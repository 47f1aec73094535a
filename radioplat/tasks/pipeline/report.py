"""The page of a pipeline: a picture of its nodes and what needs what, and a table with the state and cost of each."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from radioplat.common import terminal
from radioplat.tasks.graph.node import Graph
from radioplat.tasks.pipeline.dag import Pipeline, TaskNode
from radioplat.tasks.pipeline.record import NodeEntry, Record, State
from radioplat.tracking.report.page import write_report
from radioplat.tracking.table import Table

PAGE, PICTURE = "report.html", "pipeline.png"
_COLORS = {
    State.done: "#cfe8cf",
    State.running: "#cfe0f5",
    State.failed: "#f5cccc",
    State.blocked: "#f3e3d3",
    State.stopped: "#f5efc4",
    State.waiting: "#eeeeee",
}


def write_pages(pipeline: Pipeline, record: Record) -> Path:
    """Write ``report.html`` and ``pipeline.png``; return the path of the page."""
    png = draw(pipeline.graph, record)
    (pipeline.home / PICTURE).write_bytes(png)
    done = sum(entry.state is State.done for entry in record.entries.values())
    headline = f"{done} of {len(record.entries)} nodes are done, {record.progress:.0%} of the whole."
    return write_report(
        pipeline.home / PAGE,
        title="Pipeline",
        headline=headline,
        tables=tables_of(list(record.entries.values()), record),
        pictures=[("An arrow leads from a node to one that needs it.", png)],
        spec_yaml=pipeline.text,
    )


def tables_of(entries: Sequence[NodeEntry], record: Record) -> list[Table]:
    """Return the table of the nodes, and one of their sums."""
    columns = [
        "node",
        "task",
        "needs",
        "state",
        "steps",
        "seconds",
        "GPU hours",
        "price",
        "size",
        "parameters",
        "starts",
    ]
    note = (
        "seconds, GPU hours and price are those of all starts; size is that of the result; starts are those it ran in."
    )
    totals = record.totals()
    names = {"seconds": "seconds in all", "gpu_seconds": "GPU hours", "cpu_seconds": "CPU hours", "price": "price"}
    sums = [(names[n], value / 3600 if n.endswith("_seconds") else value) for n, value in totals.items()]
    return [
        Table(columns, [_row(entry) for entry in entries], "Nodes", note),
        Table(["figure", "value"], sums, "The pipeline as a whole"),
        *_figures(entries),
    ]


def _row(entry: NodeEntry) -> list[object]:
    steps = f"{entry.step} of {entry.steps}" if entry.steps else None
    outcome = entry.outcome
    size = terminal.size(outcome.bytes) if outcome else None
    return [
        entry.name,
        entry.task,
        ", ".join(entry.needs) or None,
        entry.state.value,
        steps,
        entry.seconds,
        entry.gpu_seconds / 3600,
        entry.price,
        size,
        outcome.params if outcome else None,
        ", ".join(map(str, entry.starts)) or None,
    ]


def _figures(entries: Sequence[NodeEntry]) -> list[Table]:
    """Return a table of the metrics of the nodes that evaluate."""
    rows = [
        (entry.name, name, value) for entry in entries if entry.outcome for name, value in entry.outcome.metrics.items()
    ]
    return [Table(["node", "metric", "value"], rows, "Evaluations")] if rows else []


def draw(graph: Graph[TaskNode], record: Record) -> bytes:
    """Return a PNG of the graph: a column for each number of nodes that must run one after the other before."""
    from matplotlib.figure import Figure

    depth: dict[str, int] = {}
    for node in graph:
        depth[node.name] = max((depth[name] + 1 for name in node.needs), default=0)
    columns = [[name for name in depth if depth[name] == i] for i in range(max(depth.values()) + 1)]
    height = max(len(names) for names in columns)
    places = {
        name: (i, (height - len(names)) / 2 + row) for i, names in enumerate(columns) for row, name in enumerate(names)
    }
    figure = Figure(figsize=(max(4.0, 2.4 * len(columns)), max(1.6, 1.1 * height)), layout="constrained")
    axes = figure.add_subplot()
    axes.axis("off")
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_ylim(height - 0.4, -0.6)
    boxes = {}
    for name, (x, y) in places.items():
        entry = record.entries[name]
        text = f"{name}\n{entry.task}, {entry.state.value}"
        box = {"boxstyle": "round,pad=0.5", "facecolor": _COLORS[entry.state], "edgecolor": "0.4"}
        boxes[name] = axes.text(x, y, text, ha="center", va="center", fontsize=9, bbox=box, zorder=3)
    for node in graph:
        for name in node.needs:
            bend = 0.25 if places[node.name][1] > (height - 1) / 2 else -0.25  # around the nodes between the two
            arrow = {
                "arrowstyle": "-|>",
                "color": "0.4",
                "patchA": boxes[name].get_bbox_patch(),
                "patchB": boxes[node.name].get_bbox_patch(),
                "shrinkA": 2,
                "shrinkB": 2,
                "connectionstyle": f"arc3,rad={bend if depth[node.name] - depth[name] > 1 else 0}",
            }
            axes.annotate("", places[node.name], places[name], arrowprops=arrow, zorder=2)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    return buffer.getvalue()
