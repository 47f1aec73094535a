"""``radioplat pack`` in the terminal."""

from __future__ import annotations

from radioplat.common import terminal
from radioplat.data.packing.pack import SPLITS, Packed
from radioplat.tracking.progress import StepProgress


class PackProgress:
    """A bar for each part of the work, on stderr. Use as a context manager and call it with the figures."""

    def __init__(self) -> None:
        self._what = ""
        self._bar: StepProgress | None = None

    def __call__(self, what: str, done: int, total: int) -> None:
        if what != self._what:
            self.__exit__()
            self._what = what
            self._bar = StepProgress(total, label=what, unit="image").__enter__()
        if self._bar is not None:
            self._bar.update(done)

    def __enter__(self) -> PackProgress:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.__exit__(*exception)
            self._bar = None


def show(packed: Packed) -> None:
    """Print what was packed."""
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
        terminal.say(f"{packed.kept} shards were there already")
    if packed.bad:
        counts = ", ".join(f"{count} {reason}" for reason, count in packed.bad.items())
        terminal.say(f"left out: {counts}; see {packed.folder / 'rejected.csv'}")
