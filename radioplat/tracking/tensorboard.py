"""TensorBoard event files beside status.json."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER = "tensorboard"


class EventFiles:
    """Scalars by name and optimizer step in ``<folder>/tensorboard``; does nothing where ``enabled`` is false.

    Each start of a run writes a file of its own. TensorBoard drops what an earlier start wrote of steps that the
    next one takes again.
    """

    def __init__(self, folder: Path, enabled: bool, purge_step: int | None = None) -> None:
        self.folder = folder / FOLDER
        self._writer: Any = None
        if enabled:
            from tensorboardX import SummaryWriter

            self._writer = SummaryWriter(str(self.folder), purge_step=purge_step, flush_secs=10)

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        """Each number of ``values``; one that is not finite is left out."""
        if self._writer is not None:
            for name, value in values.items():
                if isinstance(value, (int, float)) and math.isfinite(value):
                    self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write what is held back, and close."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
