"""Progress of a run's steps: a bar on a terminal, or a line every few seconds in a log."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class StepProgress:
    """Context manager that shows step, loss, images per second and the remaining time.

    Args:
        total: steps of the whole run.
        start: steps done before (a resumed run).
        label: name of the task, e.g. ``distill``.
        every: seconds between lines if ``stream`` is no terminal (the logs of a Ray job).
        stream: default ``sys.stderr``.
        unit: name of a step, e.g. ``image``.
    """

    def __init__(
        self,
        total: int,
        *,
        start: int = 0,
        label: str = "distill",
        every: float = 10.0,
        stream: TextIO | None = None,
        unit: str = "step",
    ) -> None:
        self._total, self._first, self._label, self._every, self._unit = total, start, label, every, unit
        self._stream = stream if stream is not None else sys.stderr
        self._timed = False
        self._began = time.monotonic()
        self._spoke = float("-inf")
        self._step = start
        self._line = ""
        self._bar: Progress | None = None
        if self._stream.isatty():
            self._bar = Progress(
                TextColumn("[bold]{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.fields[line]}"),
                console=Console(file=self._stream),
            )
            self._task = self._bar.add_task(label, total=total, completed=start, line="")

    def update(
        self, step: int, *, loss: float | None = None, images_per_s: float | None = None, note: str = ""
    ) -> None:
        """Show that ``step`` steps of the run are done."""
        if not self._timed:  # the time before the first step is start-up and not used to predict the rest
            self._timed, self._first, self._began = True, step, time.monotonic()
        self._step = step
        parts = [] if loss is None else [f"loss {loss:.4f}"]
        if images_per_s is not None:
            parts.append(f"{images_per_s:.1f} images/s")
        if (left := self._left()) is not None:
            parts.append(f"{_clock(left)} left")
        self._line = "  ".join([*parts, note] if note else parts)
        if self._bar is not None:
            self._bar.update(self._task, completed=step, line=self._line)
        elif time.monotonic() - self._spoke >= self._every or step >= self._total:
            self._say()

    def tell(self, line: str) -> None:
        """Show ``line`` once, above the progress bar."""
        if self._bar is not None:
            self._bar.console.print(line, markup=False, highlight=False)
        else:
            print(f"{self._label}: {line}", file=self._stream, flush=True)

    def __enter__(self) -> StepProgress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self._line:
            self._say()  # the last known state, also after an error

    def _left(self) -> float | None:
        done = self._step - self._first
        elapsed = time.monotonic() - self._began
        return elapsed / done * (self._total - self._step) if done > 0 and self._step < self._total else None

    def _say(self) -> None:
        print(f"{self._label}: {self._unit} {self._step}/{self._total}  {self._line}", file=self._stream, flush=True)
        self._spoke, self._line = time.monotonic(), ""


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
