"""What the students are worth: kNN by the judge beside their teachers, and the latency of INT8 beside floats."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import radioplat
from benchmarks.demonstration.runs import DISTURBED, SIDE, student
from benchmarks.family import TEACHERS
from benchmarks.teach.programs import last_line
from radioplat.quickstart.photographs import PHOTOGRAPHS, crops
from radioplat.quickstart.weights import MEAN, STD, teacher_weights

BANK, QUERIES = 8, 4  # crops of each photograph
CALIBRATION = 40  # images for the ranges of INT8


def knn(home: Path, names: list[str]) -> dict[str, dict[str, Any]]:
    """Return the judge's top-1 of each student and teacher, with its 95 % interval: which photograph is a crop of?

    Crops of the bank are from one part of each of 20 photographs, those to be named from another.
    """
    folder = home / "worth"
    corpora = _corpora(folder / "corpora")
    found = {}
    for name in names:
        onnx = folder / name / "fp32.onnx"
        found[name] = _judged(folder / name / "embeddings.npz", corpora, onnx)
    for name, architecture in TEACHERS.items():
        weights = teacher_weights(architecture, home / "weights")
        card = ["--timm", architecture, "--weights", weights, "--mean", *MEAN, "--std", *STD]
        found[name] = _judged(folder / f"{name}.npz", corpora, *card)
    return found


def engines(home: Path, name: str) -> dict[str, Any]:
    """Build the INT8 engine of a student for this CPU; return the milliseconds of one image in INT8 and in floats."""
    folder = home / "worth" / name
    made = folder / "latency.json"  # of one image: of a demonstration that was interrupted later
    if made.exists():
        return json.loads(made.read_text())
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint = student(home, DISTURBED, name) / "model_latest"
    spec: dict[str, Any] = {
        "results_dir": str(folder),
        "dataset": {
            "train_dataset": {"images_dir": str(_images(home / "worth" / "images"))},
            "img_size": SIDE,
            "batch_size": 8,
        },
        "quantize": {"checkpoint": str(checkpoint)},
    }
    with redirect_stdout(io.StringIO()):
        quantized = radioplat.quantize(spec, say=lambda line: None).student
        for kind, model in (("fp32", checkpoint), ("int8", quantized)):
            onnx = folder / f"{kind}.onnx"
            radioplat.export({**spec, "export": {"checkpoint": str(model), "onnx_file": str(onnx)}})
        engine = {
            "onnx_file": str(folder / "int8.onnx"),
            "trt_engine": str(folder / "int8.engine"),
            "backend": "openvino",
            "tensorrt": {"data_type": "int8", "opt_batch_size": 1, "max_batch_size": 8},
            "latency_seconds": 0.5,  # of each: it is measured beside the same graph in floats
        }
        radioplat.build_engine({**spec, "gen_trt_engine": engine})
    record = json.loads((folder / "int8.engine.json").read_text())
    row = record["latency"]["batches"]["1"]
    found = {kind: row[kind]["p50"] for kind in row}
    made.write_text(json.dumps(found) + "\n")
    return found


def _judged(target: Path, corpora: Path, *model: object) -> dict[str, Any]:
    if not target.exists():
        last_line("benchmarks.judges.embed", *model, "--corpora", corpora, "--only", "scenes", "--out", target)
    figures = last_line("benchmarks.judges.knn", target)["figures"]
    return figures["scenes.knn"]


def _corpora(folder: Path) -> Path:
    """Write crops with the number of their photograph, as the judge's program reads them; return the folder."""
    path = folder / "scenes.npz"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        arrays: dict[str, Any] = {"names": np.array([each.name for each in PHOTOGRAPHS])}
        for split, held_out, count in (("bank", False, BANK), ("queries", True, QUERIES)):
            arrays[f"{split}.images"] = np.stack(
                [np.asarray(each.resize((SIDE, SIDE))) for each in _crops(held_out, count)]
            )
            arrays[f"{split}.labels"] = np.repeat(np.arange(len(PHOTOGRAPHS)), count)
        np.savez(path, **arrays)
    return folder


def _images(folder: Path) -> Path:
    if not folder.exists():
        folder.mkdir(parents=True)
        for number, image in enumerate(_crops(False, CALIBRATION // len(PHOTOGRAPHS))):
            image.resize((SIDE, SIDE)).save(folder / f"{number:03d}.png")
    return folder


def _crops(held_out: bool, count: int) -> list[Image.Image]:
    return [crop for each in PHOTOGRAPHS for crop in crops(each, held_out, count, seed=1)]
