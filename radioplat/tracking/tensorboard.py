"""TensorBoard event files, next to status.json."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER = "tensorboard"


class EventFiles:
    """Scalars by name and optimizer step in ``<folder>/tensorboard``; does nothing if ``enabled`` is false.

    Each start of a run writes a new file. TensorBoard drops the values of steps from ``purge_step`` on that an earlier
    start wrote.
    """

    def __init__(self, folder: Path, enabled: bool, purge_step: int | None = None) -> None:
        self.folder = folder / FOLDER
        self._writer: Any = None
        if enabled:
            from tensorboardX import SummaryWriter

            self._writer = SummaryWriter(str(self.folder), purge_step=purge_step, flush_secs=10)

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        """Log the finite numbers of ``values``."""
        if self._writer is not None:
            for name, value in values.items():
                if isinstance(value, (int, float)) and math.isfinite(value):
                    self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush and close the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
