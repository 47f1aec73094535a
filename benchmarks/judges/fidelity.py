"""How near does a student's head come to its teacher on held-out images? Imports nothing of radioplat.

``python -m benchmarks.judges.fidelity A.onnx [A2.onnx ...] --head NAME --timm ARCHITECTURE --weights F.safetensors
[--mean 0.5 --std 0.5] [--kind spatial] [--against B.onnx [B2.onnx ...]]``: each file is a seed of one student, exported
with its heads, whose output ``NAME.spatial`` (or ``NAME.summary``) is compared with the teacher's on queries of the
scenes. Per image, the figure is the mean over positions of the cosine after the teacher's mean feature (over all these
images and positions) was taken from both: 1 is the teacher, 0 a constant answer. Intervals and paired differences are
those of `benchmarks/judges/resampling.py`.

The last line on stdout is one JSON object.
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

from benchmarks.judges.embed import BATCH, CORPORA, Model, OnnxStudent, TimmModel, opened
from benchmarks.judges.embeddings import UnfitFile
from benchmarks.judges.probes import Hits
from benchmarks.judges.resampling import Interval, difference, one_side

IMAGES = 2400  # queries that are compared, of every scene alike


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare and print; 2 where a file is unfit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("students", type=Path, nargs="+", metavar="A.onnx", help="one for each seed")
    parser.add_argument("--against", type=Path, nargs="+", default=[], metavar="B.onnx", help="one for each seed")
    parser.add_argument("--head", required=True, help="the teacher's name in the run")
    parser.add_argument("--kind", choices=("summary", "spatial"), default="spatial")
    parser.add_argument("--timm", required=True, metavar="ARCHITECTURE")
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--mean", type=float, nargs="+")
    parser.add_argument("--std", type=float, nargs="+")
    parser.add_argument("--corpora", type=Path, default=CORPORA)
    given = parser.parse_args(arguments)
    threads = int(os.environ.get("OMP_NUM_THREADS") or 1)
    try:
        with opened(given.corpora / "scenes.npz") as corpus:
            images = corpus["queries.images"]
        images = images[:: max(1, len(images) // IMAGES)]
        teacher = _features(TimmModel(given.timm, given.weights, given.mean, given.std, 0, threads), images, given.kind)
        sides = {
            side: [
                fidelity(_features(OnnxStudent(path, threads, f"{given.head}."), images, given.kind), teacher, path)
                for path in paths
            ]
            for side, paths in (("figure", given.students), ("against", given.against))
            if paths
        }
    except UnfitFile as error:
        print(error, file=sys.stderr)
        return 2
    result: dict[str, Any] = {side: bounds(one_side(hits)) for side, hits in sides.items()}
    if given.against:
        result["difference"] = bounds(difference(sides["figure"], sides["against"]))
    for name, each in result.items():
        print(f"{name:10} {each['value']:+.4f}  [{each['lower']:+.4f}, {each['upper']:+.4f}]")
    print(json.dumps({"head": given.head, "kind": given.kind, "images": len(images), **result}))
    return 0


def fidelity(student: np.ndarray, teacher: np.ndarray, name: object = "") -> Hits:
    """Return the cosine of each image: both ``[N, D]`` or ``[N, h, w, D]``.

    Raises:
        UnfitFile: the shapes differ.
    """
    if student.shape != teacher.shape:
        raise UnfitFile(f"{name}: its head gives {student.shape[1:]} where the teacher gives {teacher.shape[1:]}")
    mean = teacher.reshape(-1, teacher.shape[-1]).mean(0)
    ours, theirs = student - mean, teacher - mean
    norms = np.linalg.norm(ours, axis=-1) * np.linalg.norm(theirs, axis=-1)
    cosines = np.divide((ours * theirs).sum(-1), norms, out=np.zeros_like(norms), where=norms > 0)
    per_image = cosines.reshape(len(cosines), -1).mean(1, dtype=np.float64)[:, None]
    return Hits(per_image, np.ones_like(per_image), 0.0)


def _features(model: Model, images: np.ndarray, kind: str) -> np.ndarray:
    found = []
    for begin in range(0, len(images), BATCH):
        summary, spatial = model(images[begin : begin + BATCH])
        features = spatial if kind == "spatial" else summary
        if features is None:
            raise UnfitFile(f"{model.name}: it has no {kind}")
        found.append(features)
    return np.concatenate(found)


def bounds(interval: Interval) -> dict[str, float]:
    """Return value and interval, rounded."""
    return {key: round(getattr(interval, key), 5) for key in ("value", "lower", "upper")}


if __name__ == "__main__":
    sys.exit(main())
