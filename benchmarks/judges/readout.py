"""How much of a teacher can be read from a student's features on held-out images? Imports nothing of radioplat.

``python -m benchmarks.judges.readout A.onnx [A2.onnx ...] --against B.onnx [B2.onnx ...] --timm ARCHITECTURE --weights
F.safetensors [--mean 0.5 --std 0.5] --images FILE.npz``: each file is a seed of one student. Ridge regression from the
student's summary (with an intercept; the strength is picked on a fifth of ``bank.images``) to the teacher's is fitted
on ``bank.images``. The figure is the mean over ``queries.images`` of the cosine between what is read and what the
teacher says, after the teacher's mean was taken from both: 1 is the teacher, 0 a constant. So students with heads for
other teachers can be compared. Intervals and paired differences are those of `benchmarks/judges/resampling.py`.

``--images`` has ``bank.images`` and ``queries.images``, uint8 ``[N, H, W, 3]``. The teacher sees them enlarged
(bicubic) to ``--teacher-size``. The last line on stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.judges.embed import BATCH, Model, OnnxStudent, TimmModel
from benchmarks.judges.embeddings import UnfitFile
from benchmarks.judges.fidelity import bounds, fidelity
from benchmarks.judges.resampling import difference, one_side

STRENGTHS = 10.0 ** np.arange(-4, 4)  # of the ridge, times the mean square of a feature


def main(arguments: Sequence[str] | None = None) -> int:
    """Read, compare and print; 2 where a file is unfit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("students", type=Path, nargs="+", metavar="A.onnx", help="one for each seed")
    parser.add_argument("--against", type=Path, nargs="+", default=[], metavar="B.onnx", help="one for each seed")
    parser.add_argument("--timm", required=True, metavar="ARCHITECTURE")
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--mean", type=float, nargs="+")
    parser.add_argument("--std", type=float, nargs="+")
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--teacher-size", type=int, default=224)
    given = parser.parse_args(arguments)
    threads = int(os.environ.get("OMP_NUM_THREADS") or 1)
    try:
        with np.load(given.images) as file:
            images = [file["bank.images"], file["queries.images"]]
        model = TimmModel(given.timm, given.weights, given.mean, given.std, 0, threads)
        teacher = [summaries(model, enlarged(part, given.teacher_size)) for part in images]
        sides = {}
        for side, paths in (("figure", given.students), ("against", given.against)):
            for path in paths:
                student = [summaries(OnnxStudent(path, threads), part) for part in images]
                sides.setdefault(side, []).append(fidelity(read(*student, teacher[0]), teacher[1], path))
    except UnfitFile as error:
        print(error, file=sys.stderr)
        return 2
    result: dict[str, Any] = {side: bounds(one_side(hits)) for side, hits in sides.items()}
    if given.against:
        result["difference"] = bounds(difference(sides["figure"], sides["against"]))
    print(json.dumps({"timm": given.timm, "images": [len(part) for part in images], **result}))
    return 0


def read(bank: np.ndarray, queries: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return the targets of ``queries`` as ridge regression on ``bank`` gives them, float64 ``[Q, D]``.

    Args:
        bank: the student's features ``[N, C]``; ``queries``: ``[Q, C]``.
        targets: the teacher's features of the bank ``[N, D]``.
    """
    held = np.arange(len(bank)) % 5 == 0
    fitted = ridges(bank[~held], targets[~held], STRENGTHS)
    errors = [np.square(each(bank[held]) - targets[held]).mean() for each in fitted]
    return ridges(bank, targets, [STRENGTHS[int(np.argmin(errors))]])[0](queries)


def ridges(features: np.ndarray, targets: np.ndarray, strengths: Sequence[float]) -> list[Any]:
    """Return, for each strength, the function of features that ridge regression with an intercept fits."""
    center, mean = features.mean(0, dtype=np.float64), targets.mean(0, dtype=np.float64)
    x, y = features - center, targets - mean
    _, values, directions = np.linalg.svd(x, full_matrices=False)
    projected = directions @ x.T @ y

    def fitted(strength: float) -> Any:  # noqa: ANN401
        shrunk = values**2 + strength * np.square(x).mean() * len(x)
        weights = directions.T @ (projected / shrunk[:, None])
        return lambda others: (others - center) @ weights + mean

    return [fitted(strength) for strength in strengths]


def summaries(model: Model, images: np.ndarray) -> np.ndarray:
    """Return the summary of each image, float32 ``[N, D]``."""
    return np.concatenate([model(images[at : at + BATCH])[0] for at in range(0, len(images), BATCH)])


def enlarged(images: np.ndarray, size: int) -> np.ndarray:
    """Return images uint8 ``[N, size, size, 3]``."""
    return np.stack([np.asarray(Image.fromarray(image).resize((size, size), Image.BICUBIC)) for image in images])


if __name__ == "__main__":
    sys.exit(main())
