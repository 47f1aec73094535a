"""Terminal output of ``low_rank``."""

from __future__ import annotations

from radioplat.common import terminal
from radioplat.tasks.low_rank.low_rank import LowRankReport
from radioplat.tasks.prune.show import cost_rows


def show(report: LowRankReport) -> None:
    """Print the decomposed layers and the costs before and after."""
    layers = report.layers
    rows = [[name, str(rank), f"{layers.energies[name]:.1%}"] for name, rank in layers.ranks.items()]
    terminal.show_table("Decomposed layers", ["layer", "rank", "energy kept"], rows, "")
    if layers.whole:
        terminal.say(f"not decomposed, because they would not get smaller: {', '.join(layers.whole)}")
    rows = cost_rows(report.before, report.after)
    terminal.show_table("Backbone", ["", "before", "after", "kept"], rows, f"{len(layers.ranks)} layers decomposed")
    terminal.say(f"{report.path}")
