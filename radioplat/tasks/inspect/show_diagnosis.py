"""Terminal output of ``diagnose``."""

from __future__ import annotations

from radioplat.common import terminal
from radioplat.tasks.inspect.diagnose import Diagnosis


def show(diagnosis: Diagnosis) -> None:
    """Print the cause, the evidence, the advice and the tables of goodput."""
    terminal.say(diagnosis.cause)
    for line in diagnosis.evidence:
        terminal.say(f"  {line}")
    if diagnosis.advice:
        terminal.say(f"What to do: {diagnosis.advice}")
    for table in diagnosis.account.tables() if diagnosis.account else []:
        table.show(with_note=False)
