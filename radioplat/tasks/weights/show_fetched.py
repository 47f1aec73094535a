"""Terminal output of ``weights fetch``."""

from __future__ import annotations

from radioplat.common import terminal
from radioplat.tasks.weights.fetch import Fetched


def show(fetched: Fetched) -> None:
    """Print where weights are, and what a spec names."""
    terminal.say(f"{fetched.address}: {fetched.path} ({terminal.size(fetched.bytes)})")
    if fetched.is_new:
        commit = f"commit {fetched.entry.revision[:12]}, " if fetched.entry.revision else ""
        terminal.say(f"    pinned: {commit}{len(fetched.entry.files)} file(s); a spec may name the address or the path")
