"""The result files of TAO's ``inference``: ``result.csv`` of a classifier, KITTI labels of a detector."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TextIO

from radioplat.data.loading.image_files import ImageView
from radioplat.evaluation.inference.infer import Prediction


class ResultCsv:
    """``img_name, pred_label, pred_score``: the path, and the class with the highest score, of each image."""

    def __init__(self, file: TextIO) -> None:
        self._writer = csv.writer(file)
        self._writer.writerow(["img_name", "pred_label", "pred_score"])

    def add(self, batch: Sequence[tuple[ImageView, Prediction]]) -> None:
        """Append the images that could be read."""
        for view, row in batch:
            if row.scores is not None:
                self._writer.writerow([view.image.path, row.shown_class(0), float(row.scores[0])])


def write_kitti(folder: Path, rows: Sequence[Prediction], threshold: float, shared: Collection[str] = ()) -> None:
    """Write ``<image>.txt`` with a line for each box whose score is at least ``threshold``.

    The fields of a line are KITTI's (Geiger et al. 2012): class, truncation, occlusion, alpha, left, top, right, bottom
    in pixels, three sizes, a place, a rotation, the score. Those of three dimensions are 0. Images whose names without
    their ending are in ``shared`` keep the ending: ``a.jpg.txt`` beside ``a.png.txt``.
    """
    for row in rows:
        if row.boxes is None or row.scores is None:
            continue
        lines = []
        for i in (row.scores >= threshold).nonzero()[0].tolist():
            corners = " ".join(f"{corner:.3f}" for corner in row.boxes[i].tolist())
            lines.append(f"{row.shown_class(i)} 0.00 0 0.00 {corners} {'0.00 ' * 7}{row.scores[i]:.3f}\n")
        stem = str(Path(row.name).with_suffix(""))
        path = folder / f"{row.name if stem in shared else stem}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(lines), encoding="utf-8")


def shared_stems(names: Iterable[str]) -> set[str]:
    """Return the names without their ending that several of ``names`` have."""
    counts = Counter(str(Path(name).with_suffix("")) for name in names)
    return {stem for stem, count in counts.items() if count > 1}
