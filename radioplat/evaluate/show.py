"""An evaluation in the terminal."""

from __future__ import annotations

from radioplat import terminal
from radioplat.evaluate.measure import Findings
from radioplat.evaluate.run import EvaluateResult
from radioplat.evaluate.summary import fidelity_table, knn_table


def show(result: EvaluateResult) -> None:
    """Print the tables of the report."""
    findings = Findings(knn=result.knn, fidelity=result.fidelity, accuracy=result.accuracy)
    for table in (fidelity_table(findings), knn_table(findings)):
        if table.rows:
            terminal.show_table(
                table.title, list(table.columns), [[str(c) for c in row] for row in table.rows], table.note
            )
    terminal.say(f"report: {result.report}")
