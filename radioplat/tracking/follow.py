"""Follow a run from the driver: read status.json while the workers write it."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from radioplat.tracking.json_lines import parse_line
from radioplat.tracking.progress import StepProgress

_SHOWN = 6  # metrics of a validation shown on the terminal; status.json has all


@dataclass(frozen=True)
class StepEvent:
    """One optimizer step.

    Attributes:
        step: steps done, from 1.
        metrics: losses, ``lr``, ``images_per_s`` and seconds, by name.
    """

    step: int
    max_step: int
    epoch: int
    metrics: dict[str, float | None]


@dataclass(frozen=True)
class CheckpointEvent:
    """A checkpoint was written."""

    step: int
    path: Path


Callback = Callable[[StepEvent | CheckpointEvent], None]


class Follower:
    """Read new lines of ``status.json`` in a thread, show progress and call the callbacks, in order.

    Args:
        path: of ``status.json``.
        callbacks: called with each event.
        total: steps of the whole run.
        start: steps done before.
        label: name of the task, for the progress bar.
        show: show a progress bar.
    """

    def __init__(
        self, path: Path, callbacks: Sequence[Callback], total: int, start: int, label: str, show: bool
    ) -> None:
        self._path, self._callbacks = path, list(callbacks)
        self._offset = path.stat().st_size if path.exists() else 0
        self._progress = StepProgress(total, start=start, label=label) if show else None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="follower", daemon=True)

    def __enter__(self) -> Follower:
        if self._progress:
            self._progress.__enter__()
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()
        self._read()
        if self._progress:
            self._progress.__exit__(*exception)

    def _run(self) -> None:
        while not self._stop.wait(0.25):
            self._read()

    def _read(self) -> None:
        if not self._path.exists():
            return
        with open(self._path, "rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.split(b"\n"):
            if (value := parse_line(line)) is not None:  # else the line of a writer that was killed
                self._take(value)

    def _take(self, line: dict[str, Any]) -> None:
        if self._progress and line.get("message", "").startswith("validation at step"):
            figures = [f"{name} {value:.4f}" for name, value in line["kpi"].items()][:_SHOWN]
            self._progress.tell("  ".join([line["message"].partition(";")[0], *figures]))
        if "checkpoint" in line:
            self._tell(CheckpointEvent(line["step"], self._path.parent / line["checkpoint"]))
        elif "max_step" in line:
            kpi = line["kpi"]
            if self._progress:
                self._progress.update(line["step"], loss=kpi.get("loss"), images_per_s=kpi.get("images_per_s"))
            self._tell(StepEvent(line["step"], line["max_step"], line["epoch"], kpi))

    def _tell(self, event: StepEvent | CheckpointEvent) -> None:
        for callback in self._callbacks:
            try:
                callback(event)
            except Exception as error:  # a user's callback must not end the run
                warnings.warn(f"callback {callback!r} failed at step {event.step}: {error!r}", stacklevel=1)
