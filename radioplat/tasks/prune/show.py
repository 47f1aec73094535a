"""Terminal output of ``prune``."""

from __future__ import annotations

from radioplat.common import terminal
from radioplat.compression.cost import Cost
from radioplat.tasks.prune.prune import PruneReport


def show(report: PruneReport) -> None:
    """Print the costs before and after, the rounds and the zeros."""
    rows = cost_rows(report.before, report.after)
    terminal.show_table("Backbone", ["", "before", "after", "kept"], rows, _went(report))
    if report.rounds:
        _show_rounds(report)
    if report.sparse is not None:
        sparse = report.sparse
        terminal.say(
            f"{sparse.pattern}: {sparse.zeros:,} of {sparse.weights:,} weights of {sparse.layers} layers are zero"
        )
        if sparse.left_out:
            terminal.say(f"left out, their number of inputs is not a multiple of 4: {', '.join(sparse.left_out)}")
    for note in report.notes:
        terminal.note(note)
    if report.heads_stay:
        some = ", ".join(report.heads_stay[:2]) + (", ..." if len(report.heads_stay) > 2 else "")
        terminal.say(f"{len(report.heads_stay)} attention layers keep all heads, as they do not run with fewer: {some}")
    if report.reconstructed:
        _show_reconstructed(report)
    if report.batchnorm_images:
        terminal.say(f"BatchNorm's statistics estimated again from {report.batchnorm_images} training images")
    terminal.say(f"{report.path}")
    if report.rounds:
        return
    # Another distill.results_dir, not results_dir: paths of data in the spec may refer to that.
    start = f"train.pretrained_model_path={report.path}"
    terminal.say(f"retrain it with: radioplat distill -e SPEC {start} distill.results_dir=ANOTHER")


def _show_rounds(report: PruneReport) -> None:
    rows = []
    for each in report.rounds:
        zeros = f"{each.sparse.zeros / each.sparse.weights:.1%}" if each.sparse else ""
        params, macs = (getattr(each.after, k) / getattr(report.before, k) for k in ("params", "macs"))
        latency = f"{1e3 * each.after.latency:.1f} ms" if each.after.latency is not None else ""
        rows.append([str(each.number), f"{each.amount:.1%}", f"{params:.1%}", f"{macs:.1%}", latency, zeros])
    columns = ["round", "removed", "parameters left", "multiply-accumulates left", "one image, here", "zeros"]
    terminal.show_table("Rounds", columns, rows, "retrained after each")


def _show_reconstructed(report: PruneReport) -> None:
    rows = []
    for each in report.reconstructed:
        shares = ("" if share is None else f"{share:.1%}" for share in (each.before, each.after))
        rows.append([each.block, *shares])
    columns = ["block", "explained before", "explained after"]
    terminal.show_table("Output of the original's blocks", columns, rows, "share of its variance, on images held out")
    for each in report.reconstructed:
        if each.reason:
            terminal.say(f"{each.block} stays as it was cut: {each.reason}")


def cost_rows(before: Cost, after: Cost) -> list[list[str]]:
    """Return rows of a table: measure, before, after, and the share that is kept."""
    counts = (("parameters", before.params, after.params), ("multiply-accumulates", before.macs, after.macs))
    rows = [[name, f"{old:,}", f"{new:,}", f"{new / old:.1%}"] for name, old, new in counts]
    if before.latency is not None and after.latency is not None:
        slow, quick = f"{1e3 * before.latency:.1f} ms", f"{1e3 * after.latency:.1f} ms"
        rows.append(["one image, here", slow, quick, f"{after.latency / before.latency:.1%}"])
    return rows


def _went(report: PruneReport) -> str:
    if not report.went:
        return f"{report.amount:.0%} of each layer removed" if report.amount else "no channel removed"
    least, most = (f"{share:.0%}" for share in report.went)
    if least == most:
        return f"{least} of each layer removed"
    return f"{least} to {most} of a layer removed, in whole heads and multiples of prune.granularity"
