"""``radioplat weights`` in the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from radioplat.common import terminal
from radioplat.models.weights.layouts import Inspection


def show(result: Inspection, written: Path | None = None) -> None:
    """Print the layout of a checkpoint file, the types it fits, and every renamed or dropped key."""
    terminal.say(
        f"{result.path}: {result.layout}, {result.tensors} tensors, {result.parameters / 1e6:.2f} M parameters"
    )
    named = ", ".join(result.types) or "unknown; give the architecture that it was trained as"
    terminal.say(f"model.backbone.type: {named}")
    for note in result.notes:
        terminal.say(f"note: {note}")
    for old, new in result.renamed.items():
        terminal.say(f"renamed {old} -> {new}")
    for name, why in result.dropped.items():
        terminal.say(f"dropped {name}: {why}")
    if written:
        terminal.say(f"written: {written}")


def show_ensemble(files: Sequence[str | Path], unlike: Mapping[str, str]) -> None:
    """Print whether ``files`` can be one ensemble (``distill.teacher[].ensemble``), and which differ from the first."""
    for path, why in unlike.items():
        terminal.say(f"{path}: {why}")
    together = "cannot be one ensemble" if unlike else "can be one ensemble: equal tensors, name by name"
    terminal.say(f"{len(files)} files {together}")
