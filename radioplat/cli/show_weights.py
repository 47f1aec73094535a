"""``radioplat weights`` in the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from radioplat.common import terminal
from radioplat.models.weights.layouts import Inspection


def show(found: Inspection, written: Path | None = None) -> None:
    """Print whose file it is, the types it fits, and every key that is renamed or dropped."""
    terminal.say(f"{found.path}: {found.layout}, {found.tensors} tensors, {found.parameters / 1e6:.2f} M numbers")
    named = ", ".join(found.types) or "not known; name the architecture that it was trained as"
    terminal.say(f"model.backbone.type: {named}")
    for note in found.notes:
        terminal.say(f"note: {note}")
    for old, new in found.renamed.items():
        terminal.say(f"renamed {old} -> {new}")
    for name, why in found.dropped.items():
        terminal.say(f"dropped {name}: {why}")
    if written:
        terminal.say(f"written: {written}")


def show_ensemble(files: Sequence[str | Path], unlike: Mapping[str, str]) -> None:
    """Print whether ``files`` can teach as one (``distill.teacher[].ensemble``), and which differ from the first."""
    for path, why in unlike.items():
        terminal.say(f"{path}: {why}")
    together = "cannot be one ensemble" if unlike else "can be one ensemble: equal tensors, name by name"
    terminal.say(f"{len(files)} files {together}")
