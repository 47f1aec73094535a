"""Input and output names and shapes of an exported ONNX file or engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from radioplat.errors import EngineError
from radioplat.exporting.onnx.flat_detector import BOXES
from radioplat.exporting.onnx.flat_student import LOGITS
from radioplat.models.features import KINDS, Features

_HINT = "Export the student by `radioplat export`."


class FileInterface:
    """Outputs ``summary``, ``spatial``, for a classifier ``logits``, and ``<teacher>.<kind>`` for each head; of a
    detector ``logits`` and ``pred_boxes``.

    Args:
        outputs: shape by name; an open side is its name.
        sides: height and width of the images; an open one is its name.
        where: the field that names the file, for errors.

    Attributes:
        outputs: names of the outputs that are read, in order.
        head_widths: width by teacher and kind.
        detects: whether it is the file of a detector.
        num_classes: of a detector; 0 for a student.

    Raises:
        EngineError: a summary or a map is missing, or of a detector the logits.
    """

    def __init__(self, outputs: Mapping[str, Sequence[int | str]], sides: Sequence[int | str], where: str) -> None:
        self._where = where
        self._sides = [side for side in sides if isinstance(side, int) and side > 0]
        self.detects = BOXES in outputs
        needed = (LOGITS, BOXES) if self.detects else KINDS
        if missing := [name for name in needed if name not in outputs]:
            present = ", ".join(outputs) or "none"
            message = f"it lacks the outputs {', '.join(missing)}; it has {present}"
            raise EngineError(message, where=where, hint=_HINT)
        self.head_widths: dict[tuple[str, str], int] = {}
        for name, shape in outputs.items():
            teacher, _, kind = name.rpartition(".")
            width = shape[-1] if shape else None
            if teacher and kind in KINDS and isinstance(width, int):
                self.head_widths[teacher, kind] = width
        logits = [LOGITS] if LOGITS in outputs else []
        heads = [f"{teacher}.{kind}" for teacher, kind in self.head_widths]
        self.num_classes = int(outputs[LOGITS][-1]) if self.detects else 0
        self.outputs = [LOGITS, BOXES] if self.detects else [*KINDS, *logits, *heads]

    def size_for(self, requested: int | None, default: int) -> int:
        """Return the side of its input in pixels: the fixed one, or for an open one ``requested``, else ``default``.

        Raises:
            EngineError: the input is not square, or has another fixed size than ``requested``.
        """
        if len(set(self._sides)) > 1:
            height, width = self._sides
            raise EngineError(f"it takes {height} x {width} pixels, and evaluate shows squares", where=self._where)
        own = self._sides[0] if self._sides else None
        if own and requested and own != requested:
            message = f"it takes {own} pixels a side, and dataset.val_img_size is {requested}"
            raise EngineError(message, where=self._where, hint="Leave dataset.val_img_size out, or export again.")
        return own or requested or default

    def features(self, arrays: Mapping[str, np.ndarray], device: str) -> Features:
        """Convert computed outputs to fp32 features; all but ``summary`` and ``spatial`` are in ``named``."""
        own = {name: torch.from_numpy(np.ascontiguousarray(arrays[name])).float().to(device) for name in self.outputs}
        return Features(own.pop("summary", None), own.pop("spatial", None), own)
