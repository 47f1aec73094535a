"""Is the INT8 engine of a student faster than its float ones on this machine, and does its record say so?

``python -m benchmarks.engines [--families NAME ...] [--rounds N]``. Students of six families (EfficientNet-Lite0 with
its pretrained weights, the others drawn, with BatchNorm's statistics as after training) go through ``radioplat
quantize``, ``export`` and ``gen_trt_engine`` with backend openvino, at 224 px. `benchmarks.judges.engines`, which
imports nothing of radioplat, times the engines with OpenVINO's own ``benchmark_app``, one image at a time, with every
float precision that the CPU has (the hint is pinned: on a CPU with AMX OpenVINO computes fp32 files in bf16 unasked).
A ViT of two blocks is built with tensorrt_rtx, for its number of layers.

The last line on stdout is one JSON object: ``cnn_int8_over_best_float`` and ``vit_int8_over_best_float`` (geometric
means of the best float's latency over INT8's, round by round), ``least_int8_over_best_float``, ``silent`` (families
where a float is faster and the record has no warning), ``reparam_speedup`` (of the MobileOne with fused branches over
the same with branches, fp32), ``rtx_vit_layers``, ``cosine_least``, ``worst_agreement`` (largest relative difference of
the median of ``radioplat profile`` from benchmark_app's, of the INT8 engines), ``vnni`` (whether the CPU has INT8 dot
products), and all times by family.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import nn

from benchmarks.folder import kept_or_scratch
from benchmarks.teach.programs import last_line, radioplat
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.models.vision_model import save_model
from radioplat.quickstart.photographs import PHOTOGRAPHS, crops
from radioplat.quickstart.weights import teacher_weights

SIZE = 224
FIXED = {"dynamic_img_size": False}  # the others' position tables are resized in the file, which TensorRT refuses
FAMILIES = {
    "vit_tiny": StudentArchitecture("vit_tiny_patch16_224", FIXED, img_size=SIZE),
    "vit_small": StudentArchitecture("vit_small_patch16_224", FIXED, img_size=SIZE),
    "efficientnet_lite0": StudentArchitecture("tf_efficientnet_lite0", img_size=SIZE),
    "resnet18": StudentArchitecture("resnet18", {"zero_init_last": False}, img_size=SIZE),
    "mobileone_s0": StudentArchitecture("mobileone_s0", img_size=SIZE),
    "convnext_atto": StudentArchitecture("convnext_atto", {"ls_init_value": None}, img_size=SIZE),
}
VITS = ("vit_tiny", "vit_small")
SMALL = 64
TWO_BLOCKS = StudentArchitecture(
    "radio_vit_tiny_patch16", {"depth": 2}, cpe_max_size=SMALL, register_multiple=4, img_size=SMALL
)
CALIBRATION, HELD_OUT = 8, 4  # crops of each photograph


def main() -> None:
    """Make, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="for what the programs leave; default: a temporary one")
    parser.add_argument("--families", nargs="+", choices=tuple(FAMILIES), default=list(FAMILIES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--made", action="store_true", help="measure the engines that an earlier run left in --folder")
    given = parser.parse_args()
    with kept_or_scratch(given.folder, "engines") as folder:
        if not given.made:
            write_images(folder)
        print(json.dumps(measured(folder, given.families, given.rounds, given.made)))


def measured(folder: Path, families: list[str], rounds: int, made: bool) -> dict[str, Any]:
    """Return all figures."""
    for name in () if made else families:
        make(folder / name, FAMILIES[name], name)
    times = last_line("benchmarks.judges.engines", folder, "--rounds", rounds)
    ratios = {name: row["float_over_int8"] for name, row in times.items()}
    records = {name: json.loads((folder / name / "int8.engine.json").read_text()) for name in families}
    figures: dict[str, Any] = {
        "cnn_int8_over_best_float": _mean([ratio for name, ratio in ratios.items() if name not in VITS]),
        "vit_int8_over_best_float": _mean([ratio for name, ratio in ratios.items() if name in VITS]),
        "least_int8_over_best_float": round(min(ratios.values()), 3),
        "silent": [n for n, ratio in ratios.items() if ratio < 1 and not records[n]["latency"]["warnings"]],
    }
    if "mobileone_s0" in times:
        row = times["mobileone_s0"]
        figures["reparam_speedup"] = round(row["branches"] / row["fp32"], 2)
    figures["rtx_vit_layers"] = rtx_layers(folder / "rtx")
    figures["cosine_least"] = min(row["cosine"] for row in times.values())
    figures["worst_agreement"] = round(max(abs(row["ours_over_theirs"] - 1) for row in times.values()), 3)
    cpu = next(iter(records.values()))["latency"]["cpu"]
    figures["vnni"] = "vnni" in cpu or "amx_int8" in cpu
    figures["cpu"] = cpu
    return {**figures, "families": {name: {**row, "ratio": round(ratios[name], 3)} for name, row in times.items()}}


def make(home: Path, architecture: StudentArchitecture, name: str) -> None:
    """Write ``fp32.engine`` and ``int8.engine`` of a student by the commands of radioplat."""
    student = drawn(architecture)
    if name == "efficientnet_lite0":
        load_pretrained(student, home.parent / "weights")
    save_model(student, home / "student")
    images = {"train_dataset": {"images_dir": str(home.parent / "images")}, "img_size": SIZE, "batch_size": 8}
    spec: dict[str, Any] = {"dataset": images, "quantize": {"checkpoint": str(home / "student")}}
    radioplat("quantize", home, spec)
    for kind, checkpoint in (("fp32", home / "student"), ("int8", home / "quantize/model_quantized")):
        files = {"checkpoint": str(checkpoint), "onnx_file": str(home / f"{kind}.onnx")}
        engine = {
            "onnx_file": files["onnx_file"],
            "trt_engine": str(home / f"{kind}.engine"),
            "backend": "openvino",
            "tensorrt": {"data_type": kind, "opt_batch_size": 1, "max_batch_size": 1},
        }
        radioplat("export", home, {**spec, "export": files})
        radioplat("gen_trt_engine", home, {**spec, "gen_trt_engine": engine})
    if student.fuse_branches().architecture.fused_branches:
        write_with_branches(drawn(architecture), home / "branches.onnx")


def drawn(architecture: StudentArchitecture) -> Student:
    """Return a student with drawn weights, and statistics of BatchNorm as after training."""
    torch.manual_seed(0)
    student = Student(architecture).eval()
    for module in student.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
    return student


def load_pretrained(student: Student, folder: Path) -> None:
    """Give a student the ImageNet weights of its architecture, which ``folder`` keeps."""
    weights = load_file(teacher_weights(student.architecture.type, folder))
    missing, _ = student.backbone.model.load_state_dict(weights, strict=False)
    assert not missing, missing


def write_with_branches(student: Student, path: Path) -> None:
    """Write the backbone as torch's own exporter does, with its branches."""
    program = torch.onnx.export(student.backbone.model, (torch.rand(1, 3, SIZE, SIZE),), dynamo=True, verbose=False)
    program.save(str(path))


def rtx_layers(home: Path) -> int | None:
    """Return the number of layers that TensorRT for RTX makes of an INT8 ViT of two blocks; None if it is not here."""
    save_model(drawn(TWO_BLOCKS), home / "student")
    images = {"train_dataset": {"images_dir": str(home.parent / "images")}, "img_size": SMALL, "batch_size": 8}
    spec: dict[str, Any] = {"dataset": images, "quantize": {"checkpoint": str(home / "student")}}
    try:
        radioplat("quantize", home, spec)
        radioplat("export", home, {**spec, "export": {"checkpoint": str(home / "quantize/model_quantized")}})
        radioplat(
            "gen_trt_engine",
            home,
            {**spec, "gen_trt_engine": {"backend": "tensorrt_rtx", "tensorrt": {"data_type": "int8"}}},
        )
    except subprocess.CalledProcessError as error:
        print(f"tensorrt_rtx: {error}", file=sys.stderr)
        return None
    return json.loads((home / "gen_trt_engine/student.engine.json").read_text())["layers"]


def write_images(folder: Path) -> None:
    """Write crops of photographs to calibrate on, and ``images.npy`` with others."""
    (folder / "images").mkdir(parents=True, exist_ok=True)
    for name, image in photographs(False, CALIBRATION):
        image.save(folder / "images" / f"{name}.png")
    held_out = [np.asarray(image).transpose(2, 0, 1) for _, image in photographs(True, HELD_OUT)]
    np.save(folder / "images.npy", np.stack(held_out))


def photographs(held_out: bool, count: int) -> Iterator[tuple[str, Image.Image]]:
    """Yield ``count`` crops of one part of each bundled photograph, with their names, in SIZE."""
    for photograph in PHOTOGRAPHS:
        for i, crop in enumerate(crops(photograph, held_out, count, seed=0)):
            yield f"{photograph.name}_{i}", crop.resize((SIZE, SIZE), Image.Resampling.BICUBIC)


def _mean(ratios: list[float]) -> float | None:
    """Return the geometric mean."""
    return round(math.exp(sum(map(math.log, ratios)) / len(ratios)), 3) if ratios else None


if __name__ == "__main__":
    main()
