"""A pruned student in the terminal."""

from __future__ import annotations

from radioplat.common import terminal
from radioplat.compression.cost import Cost
from radioplat.tasks.prune.prune import PruneReport


def show(report: PruneReport) -> None:
    """Print what it took and takes."""
    rows = cost_rows(report.before, report.after)
    terminal.show_table("Backbone", ["", "before", "after", "kept"], rows, _went(report))
    if report.rounds:
        _show_rounds(report)
    if report.sparse is not None:
        found = report.sparse
        terminal.say(f"{found.pattern}: {found.zeros:,} of {found.weights:,} weights of {found.layers} layers are zero")
        if found.left_out:
            terminal.say(f"left out, their inputs are no multiple of 4: {', '.join(found.left_out)}")
    terminal.say(f"{report.path}")
    if report.rounds:
        return
    # Not another results_dir: the spec's paths of data may begin with it.
    start = f"train.pretrained_model_path={report.path}"
    terminal.say(f"retrain it with: radioplat distill -e SPEC {start} distill.results_dir=ANOTHER")


def _show_rounds(report: PruneReport) -> None:
    rows = []
    for each in report.rounds:
        zeros = f"{each.sparse.zeros / each.sparse.weights:.1%}" if each.sparse else ""
        params, macs = (getattr(each.after, k) / getattr(report.before, k) for k in ("params", "macs"))
        latency = f"{1e3 * each.after.latency:.1f} ms" if each.after.latency is not None else ""
        rows.append([str(each.number), f"{each.amount:.1%}", f"{params:.1%}", f"{macs:.1%}", latency, zeros])
    columns = ["round", "went", "parameters left", "multiply-accumulates left", "one image, here", "zeros"]
    terminal.show_table("Rounds", columns, rows, "retrained after each")


def cost_rows(before: Cost, after: Cost) -> list[list[str]]:
    """Rows of a table: what, before, after, and the share that is kept."""
    rows = [
        ["parameters", f"{before.params:,}", f"{after.params:,}", f"{after.params / before.params:.1%}"],
        ["multiply-accumulates", f"{before.macs:,}", f"{after.macs:,}", f"{after.macs / before.macs:.1%}"],
    ]
    if before.latency is not None and after.latency is not None:
        slow, quick = f"{1e3 * before.latency:.1f} ms", f"{1e3 * after.latency:.1f} ms"
        rows.append(["one image, here", slow, quick, f"{after.latency / before.latency:.1%}"])
    return rows


def _went(report: PruneReport) -> str:
    if not report.went:
        return f"of each layer {report.amount:.0%} went" if report.amount else "no channel went"
    least, most = (f"{share:.0%}" for share in report.went)
    if least == most:
        return f"of each layer {least} went"
    return f"of a layer {least} to {most} went, in whole heads and multiples of prune.granularity"
