"""``radioplat pack`` in the terminal."""

from __future__ import annotations

from radioplat.common import terminal
from radioplat.data.packing.pack import SPLITS, Packed
from radioplat.tracking.progress import StepProgress


class PackProgress:
    """Progress bars on stderr, one per phase. A context manager; call it with phase, done and total."""

    def __init__(self) -> None:
        self._phase = ""
        self._bar: StepProgress | None = None

    def __call__(self, phase: str, done: int, total: int) -> None:
        if phase != self._phase:
            self.__exit__()
            self._phase = phase
            self._bar = StepProgress(total, label=phase, unit="image").__enter__()
        if self._bar is not None:
            self._bar.update(done)

    def __enter__(self) -> PackProgress:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.__exit__(*exception)
            self._bar = None


def show(packed: Packed) -> None:
    """Print a summary of packed shards."""
    terminal.show_table(
        str(packed.folder),
        ["split", "images", "shards", "bytes"],
        [
            [split, str(packed.images[split]), str(packed.shards[split]), terminal.size(packed.image_bytes[split])]
            for split in SPLITS
        ],
    )
    terminal.say(f"classes: {len(packed.classes)}; duplicates, each on one side of the split: {packed.duplicates}")
    if packed.kept:
        terminal.say(f"{packed.kept} shards existed already")
    if packed.bad:
        counts = ", ".join(f"{count} {reason}" for reason, count in packed.bad.items())
        terminal.say(f"left out: {counts}; see {packed.folder / 'rejected.csv'}")
