"""The judges of what is written for TensorRT and Triton, and what they said when they were last run."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from benchmarks.judges.tensorrt_names import OLDER, OURS, SOURCES, names_of
from radioplat.exporting.deploy import triton

ROOT = Path(__file__).parents[2]
RECEIPTS = ROOT / "docs" / "receipts"


def judge(name: str, *arguments: object) -> tuple[int, dict | list]:
    command = [sys.executable, "-m", f"benchmarks.judges.{name}", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout.splitlines()[-1])


def wheel(folder: Path, names: list[str]) -> Path:
    path = folder / "tensorrt_cu13_bindings-99.1-py3.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tensorrt_bindings/tensorrt.so", b"".join(name.encode() + b"\0" for name in names))
    return path


def test_a_name_that_tensorrt_does_not_have_is_missing(tmp_path):
    names = sorted(set().union(*map(names_of, SOURCES)) - OURS)
    assert {"can_run_on_DLA", "execute_async_v3", "parse_from_file", "set_memory_pool_limit"} <= set(names)
    status, said = judge("tensorrt_names", wheel(tmp_path, [name for name in names if name not in OLDER]))
    assert status == 0 and said == {
        "version": "99.1",
        "names": len(names),
        "missing": [],
        "older": sorted(OLDER & set(names)),
    }
    status, said = judge("tensorrt_names", wheel(tmp_path, [name for name in names if name != "can_run_on_DLA"]))
    assert status == 1 and said["missing"] == ["can_run_on_DLA"]


def config(folder: Path) -> Path:
    shapes = {"images": ["batch", 3, 48, 64]}, {"summary": ["batch", 12], "spatial": ["batch", 3, 4, 12]}
    (folder / "config.pbtxt").write_text(triton.config("vit", *shapes, (48, 64), 4))
    return folder / "config.pbtxt"


@pytest.mark.proof
def test_the_newest_tensorrt_has_every_name_that_we_call():
    """It downloads NVIDIA's bindings."""
    status, said = judge("tensorrt_names")
    assert (status, said["missing"]) == (0, []) and said["names"] > 40


@pytest.mark.proof
def test_tritons_own_schema_reads_the_configuration(tmp_path):
    """It downloads Triton's client."""
    assert judge("triton_config", config(tmp_path)) == (0, PARSED)


PARSED = [
    {
        "name": "vit",
        "max_batch_size": 4,
        "inputs": {"images": [3, 48, 64]},
        "outputs": {"summary": [12], "spatial": [3, 4, 12]},
    }
]


def test_what_they_said_last_is_of_the_names_that_are_called_now(tmp_path):
    receipt = json.loads((RECEIPTS / "engine_judges.json").read_text(encoding="utf-8"))
    names, schema = receipt["tensorrt_names"], receipt["triton_config"]
    assert names["missing"] == [] and names["names"] == len(set().union(*map(names_of, SOURCES)) - OURS)
    assert schema["parsed"] == PARSED and schema["file"] == config(tmp_path).read_text()


def dynamic_model(folder: Path, factor: float) -> Path:
    """A file of OpenVINO's with any batch, whose features are the images times ``factor``."""
    openvino = pytest.importorskip("openvino")
    from openvino import opset13 as ops

    images = ops.parameter([-1, 3, 4, 4], np.float32, name="images")
    model = openvino.Model([ops.multiply(images, ops.constant(np.float32(factor)))], [images], "features")
    openvino.save_model(model, str(folder / f"{factor}.xml"), compress_to_fp16=False)
    return folder / f"{factor}.xml"


def test_the_judge_of_engines_fixes_the_batch_and_takes_no_cosine_of_zeros(tmp_path):
    pytest.importorskip("openvino")
    from benchmarks.judges.engines import cosine, of_one_image, threads_of

    double, zeros, none = (dynamic_model(tmp_path, factor) for factor in (2.0, 0.0, float("nan")))
    assert of_one_image(double, "f32", (3, 4, 4)).inputs[0].partial_shape.is_static
    images = np.random.default_rng(0).integers(1, 256, (2, 3, 4, 4), np.uint8)
    assert cosine((double, "f32"), (dynamic_model(tmp_path, 3.0), "f32"), images) == 1
    for wrong in (zeros, none):
        for pair in ((wrong, double), (double, wrong)):
            with pytest.raises(SystemExit, match=f"features of .*{wrong.name} are zeros or not numbers"):
                cosine(*((model, "f32") for model in pair), images)
    assert threads_of({"latency": {"threads": 3}}) == 3
    with pytest.raises(SystemExit, match="give --threads"):
        threads_of({"latency": {"threads": None}})
