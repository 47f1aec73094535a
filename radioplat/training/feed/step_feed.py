"""The micro-batches of a run from one step on; opened anew where the step that comes next is another."""

from __future__ import annotations

from collections.abc import Callable

from radioplat.training.feed.prefetch import Prefetch


class StepFeed:
    """Return the feed at the beginning of a step.

    Steps that follow one another are read from one feed. When students have ended, nobody may take the steps that come
    next, or a step was read in part: then the feed is closed, and another begins at the step that is asked for. On
    several ranks every rank must call the methods for the same steps.

    Args:
        open_at: opens a feed of the micro-batches from a step to the last one.
        start: the first step of ``feed``.
    """

    def __init__(self, feed: Prefetch, start: int, open_at: Callable[[int], Prefetch]) -> None:
        self._feed, self._open_at = feed, open_at
        self._next: int | None = start

    def at(self, step: int) -> Prefetch:
        """Return a feed whose next micro-batch is the first of ``step``; :meth:`passed` must follow."""
        if self._next != step:
            self._feed.close()
            self._feed = self._open_at(step)
        self._next = None
        return self._feed

    def passed(self, step: int) -> None:
        """Note that all micro-batches of ``step`` have been read."""
        self._next = step + 1

    def close(self) -> None:
        """Close the feed."""
        self._feed.close()
