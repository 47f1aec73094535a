"""The judges of what is written for TensorRT and Triton, and what they said when they were last run."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from benchmarks.judges.tensorrt_names import OLDER, OURS, SOURCES, is_in, names_of
from radioplat.exporting.deploy import triton
from radioplat.exporting.engines.backends.signal_stack import kept_signal_stack

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
        archive.writestr("tensorrt_bindings/tensorrt.so", b"\0" + b"".join(name.encode() + b"\0" for name in names))
    return path


def test_a_name_that_tensorrt_does_not_have_is_missing(tmp_path):
    names = sorted(set().union(*map(names_of, SOURCES)) - OURS)
    assert {"can_run_on_DLA", "execute_async_v3", "parse_from_file", "set_memory_pool_limit"} <= set(names)
    status, said = judge("tensorrt_names", wheel(tmp_path, [name for name in names if name not in OLDER]))
    assert status == 0 and said == {
        "version": "99.1",
        "names": names,
        "missing": [],
        "older": sorted(OLDER & set(names)),
        "ends": [],
    }
    status, said = judge("tensorrt_names", wheel(tmp_path, [name for name in names if name != "can_run_on_DLA"]))
    assert status == 1 and said["missing"] == ["can_run_on_DLA"]


def test_what_objects_of_objects_are_called_is_looked_for():
    names = set().union(*map(names_of, SOURCES)) - OURS
    assert {"get_output", "num_outputs", "dynamic_range", "node_name", "node_operator", "desc"} <= names


@pytest.mark.parametrize(
    ("strings", "found"),
    [
        (b"\0parse\0desc\0", True),
        (b"\0get_desc\0", False),  # the end of another name alone
        (b"\0get_desc\0:ivar desc: the text\0", True),
        (b"\0desc_of\0:ivar desc: the text\0", False),
    ],
)
def test_the_end_of_another_name_is_no_name(strings, found):
    assert is_in(strings, "desc") is found


# Batch sizes of engines, and what Triton's schema reads: it makes batches for an engine that takes any from 1 on alone.
SERVED = {(1, 2, 4): (4, []), (2, 3, 4): (0, [-1]), (8, 8, 8): (0, [8]), (1, 1, 1): (0, [1])}


def config(folder: Path, batches: tuple[int, int, int] = (1, 2, 4)) -> Path:
    shapes = {"images": ["batch", 3, 48, 64]}, {"summary": ["batch", 12], "spatial": ["batch", 3, 4, 12]}
    path = folder / f"{'_'.join(map(str, batches))}.pbtxt"
    path.write_text(triton.config("vit", *shapes, (48, 64), batches))
    return path


@pytest.mark.proof
def test_the_newest_tensorrt_has_every_name_that_we_call():
    """It downloads NVIDIA's bindings."""
    status, said = judge("tensorrt_names")
    assert (status, said["missing"]) == (0, []) and len(said["names"]) > 40


@pytest.mark.proof
def test_tritons_own_schema_reads_the_configuration(tmp_path):
    """It downloads Triton's client."""
    status, said = judge("triton_config", *(config(tmp_path, batches) for batches in SERVED))
    assert (status, said) == (0, PARSED)


PARSED = [
    {
        "name": "vit",
        "max_batch_size": most,
        "inputs": {"images": [*first, 3, 48, 64]},
        "outputs": {"summary": [*first, 12], "spatial": [*first, 3, 4, 12]},
    }
    for most, first in SERVED.values()
]


@pytest.mark.parametrize("batches", SERVED)
def test_triton_sends_no_batch_that_the_engine_refuses(batches, tmp_path):
    most, first = SERVED[batches]
    text = config(tmp_path, batches).read_text()
    assert f"max_batch_size: {most}\n" in text and ("dynamic_batching" in text) == (most > 0)
    assert f"dims: [ {', '.join(map(str, [*first, 3, 48, 64]))} ]" in text


def test_what_they_said_last_is_of_the_names_that_are_called_now(tmp_path):
    receipt = json.loads((RECEIPTS / "engine_judges.json").read_text(encoding="utf-8"))
    names, schema = receipt["tensorrt_names"], receipt["triton_config"]
    assert names["missing"] == [] and names["names"] == sorted(set().union(*map(names_of, SOURCES)) - OURS)
    assert schema["parsed"] == PARSED
    assert schema["files"] == [config(tmp_path, batches).read_text() for batches in SERVED]


def dynamic_model(folder: Path, factor: float) -> Path:
    """A file of OpenVINO's with any batch, whose features are the images times ``factor``."""
    openvino = pytest.importorskip("openvino")
    from openvino import opset13 as ops

    images = ops.parameter([-1, 3, 4, 4], np.float32, name="images")
    model = openvino.Model([ops.multiply(images, ops.constant(np.float32(factor)))], [images], "features")
    openvino.save_model(model, str(folder / f"{factor}.xml"), compress_to_fp16=False)
    return folder / f"{factor}.xml"


@kept_signal_stack()  # the judge runs OpenVINO in this process
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
