"""A student of low rank in the terminal."""

from __future__ import annotations

from radioplat.common import terminal
from radioplat.tasks.low_rank.low_rank import LowRankReport
from radioplat.tasks.prune.show import cost_rows


def show(report: LowRankReport) -> None:
    """Print its layers, and what it took and takes."""
    found = report.layers
    rows = [[name, str(rank), f"{found.energies[name]:.1%}"] for name, rank in found.ranks.items()]
    terminal.show_table("Layers that are two now", ["layer", "rank", "energy kept"], rows, "")
    if found.whole:
        terminal.say(f"as they were, for they would not get smaller: {', '.join(found.whole)}")
    rows = cost_rows(report.before, report.after)
    terminal.show_table("Backbone", ["", "before", "after", "kept"], rows, f"{len(found.ranks)} layers decomposed")
    terminal.say(f"{report.path}")
