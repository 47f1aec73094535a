"""Terminal output of ``inference``."""

from __future__ import annotations

from radioplat.common import terminal
from radioplat.tasks.inference.inference import InferenceResult


def show(result: InferenceResult) -> None:
    """Print the path of the table and the counts of images."""
    terminal.say(f"{result.images} images by {result.model} ({result.kind})")
    if result.errors:
        counts = ", ".join(f"{count} {reason}" for reason, count in sorted(result.errors.items()))
        terminal.say(f"not read, named in the column error: {counts}; the first is {result.first_error}")
    for name, reason in result.without_effect.items():
        terminal.note(f"{name} has no effect here: {reason}")
    terminal.say(str(result.table))
