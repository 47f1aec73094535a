"""What a file of ours takes and gives: one size of images, or any; features, or what a detector says, by name."""

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
        outputs: those that are looked at, in order.
        head_widths: width by teacher and kind.
        detects: whether it is a detector's.
        num_classes: of a detector.

    Raises:
        EngineError: a summary or a map is missing, or of a detector the logits.
    """

    def __init__(self, outputs: Mapping[str, Sequence[int | str]], sides: Sequence[int | str], where: str) -> None:
        self._where = where
        self._sides = [side for side in sides if isinstance(side, int) and side > 0]
        self.detects = BOXES in outputs
        needed = (LOGITS, BOXES) if self.detects else KINDS
        if missing := [name for name in needed if name not in outputs]:
            told = ", ".join(outputs) or "none"
            raise EngineError(f"it lacks the outputs {', '.join(missing)}; it has {told}", where=where, hint=_HINT)
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

    def size_for(self, asked: int | None, usual: int) -> int:
        """Pixels a side of the images that it is shown: the file's own; ``asked``, else ``usual``, if it takes any.

        Raises:
            EngineError: the file takes images that are not square, or of another size than was asked for.
        """
        if len(set(self._sides)) > 1:
            height, width = self._sides
            raise EngineError(f"it takes {height} x {width} pixels, and evaluate shows squares", where=self._where)
        own = self._sides[0] if self._sides else None
        if own and asked and own != asked:
            message = f"it takes {own} pixels a side, and dataset.val_img_size is {asked}"
            raise EngineError(message, where=self._where, hint="Leave dataset.val_img_size out, or export again.")
        return own or asked or usual

    def features(self, found: Mapping[str, np.ndarray], device: str) -> Features:
        """What was computed, fp32; all but the summary and the map is in ``named``."""
        own = {name: torch.from_numpy(np.ascontiguousarray(found[name])).float().to(device) for name in self.outputs}
        return Features(own.pop("summary", None), own.pop("spatial", None), own)
