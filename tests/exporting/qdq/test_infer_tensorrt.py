"""The bundle's TensorRT runner: what can be checked of it without a GPU."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper
from PIL import Image

from radioplat.cli.main import main
from radioplat.exporting.deploy import infer_tensorrt
from radioplat.exporting.deploy.bundle import SAMPLE, SCRIPTS, Bundled, write_bundle
from radioplat.exporting.onnx.export import OnnxReport
from radioplat.exporting.onnx.precision import retype

VERIFIED = {
    "verified": "student.engine",
    "library": "tensorrt",
    "version": "10.3.0",
    "machine": "NVIDIA Jetson AGX Orin Developer Kit",
    "shape": [1, 3, 224, 224],
    "latency_ms": {"p50": 1.25, "p90": 1.5, "p99": 2.0, "calls": 200, "warm_up": 30, "steady": False},
    "least_cosine": {"summary": 0.9991},
}


# TensorRT's interface on the host: an engine is its ONNX file with a profile in its metadata, onnxruntime computes, and
# addresses are the host's. A shape outside the profile is refused as TensorRT refuses it: without an exception.
TENSORRT = """
import ctypes
import json
from enum import Enum

import numpy as np
import onnxruntime

__version__ = "10.3.0"


class TensorIOMode(Enum):
    INPUT, OUTPUT = 0, 1


class Logger:
    ERROR = 1

    def __init__(self, level):
        assert level == self.ERROR


class Runtime:
    def __init__(self, logger):
        assert isinstance(logger, Logger)
        self.DLA_core = -1

    def deserialize_cuda_engine(self, data):
        engine = Engine(data) if data else None
        # The substitute of trtexec notes the core; TensorRT itself takes the runtime's.
        return engine if engine is None or engine.core in (-1, self.DLA_core) else None


class Engine:
    def __init__(self, data):
        self.session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
        inputs, outputs = self.session.get_inputs(), self.session.get_outputs()
        self.shapes = {v.name: [s if isinstance(s, int) else -1 for s in v.shape] for v in (*inputs, *outputs)}
        self.modes = {v.name: TensorIOMode.INPUT for v in inputs} | {v.name: TensorIOMode.OUTPUT for v in outputs}
        self.num_io_tensors = len(self.shapes)
        noted = self.session.get_modelmeta().custom_metadata_map
        self.profile, self.core = json.loads(noted.get("profile", "null")), int(noted.get("core", -1))

    def get_tensor_name(self, i):
        return list(self.shapes)[i]

    def get_tensor_mode(self, name):
        return self.modes[name]

    def get_tensor_shape(self, name):
        return tuple(self.shapes[name])

    def get_tensor_profile_shape(self, name, profile_index):
        assert self.modes[name] is TensorIOMode.INPUT and profile_index == 0
        return [tuple(shape) for shape in self.profile]

    def create_execution_context(self):
        return Context(self)


class Context:
    def __init__(self, engine):
        self.engine, self.places, self.batch = engine, {}, -1

    def set_input_shape(self, name, shape):
        known = self.engine.shapes[name]
        smallest, _, largest = self.engine.profile or [known] * 3
        if not all(low <= side <= high for low, side, high in zip(smallest, shape, largest)):
            return False
        self.batch = shape[0]
        return True

    def get_tensor_shape(self, name):
        return tuple(self.batch if side < 0 else side for side in self.engine.shapes[name])

    def set_tensor_address(self, name, address):
        self.places[name] = address

    def execute_async_v3(self, stream):
        arrays = {}
        for name, address in self.places.items():
            shape = self.get_tensor_shape(name)
            memory = (ctypes.c_float * int(np.prod(shape))).from_address(address)
            arrays[name] = np.ctypeslib.as_array(memory).reshape(shape)
        outputs = [name for name, mode in self.engine.modes.items() if mode is TensorIOMode.OUTPUT]
        given = {name: array for name, array in arrays.items() if name not in outputs}
        for name, value in zip(outputs, self.engine.session.run(outputs, given)):
            arrays[name][...] = value
        return True
"""
CUDART = """
#include <stdlib.h>
#include <string.h>
int cudaMalloc(void **place, size_t size) { return (*place = malloc(size)) == 0; }
int cudaMemcpy(void *target, const void *source, size_t size, int kind) {
  if (kind != 1 && kind != 2) return 21;
  memcpy(target, source, size);
  return 0;
}
int cudaStreamCreate(void **stream) { *stream = (void *)1; return 0; }
int cudaStreamSynchronize(void *stream) { return stream != (void *)1; }
"""
# An engine that is its graph with the profile of the command line; the last of equal options counts.
TRTEXEC = """#!/usr/bin/env python3
import json
import sys

import onnx

print("&&&& RUNNING TensorRT.trtexec")
options = dict(word.lstrip("-").partition("=")[::2] for word in sys.argv[1:])
model = onnx.load(options["onnx"])
sides = [d.dim_value if d.HasField("dim_value") else -1 for d in model.graph.input[0].type.tensor_type.shape.dim]
if min(sides) < 0:
    given = [options[f"{name}Shapes"].partition(":")[2] for name in ("min", "opt", "max")]
    profile = [[int(side) for side in text.split("x")] for text in given]
    model.metadata_props.add(key="profile", value=json.dumps(profile))
if "useDLACore" in options:
    model.metadata_props.add(key="core", value=options["useDLACore"])
onnx.save(model, options["saveEngine"])
"""


@pytest.fixture(scope="module")
def jetson(tmp_path_factory) -> dict[str, str]:
    """The environment of a machine with substitutes for trtexec, TensorRT's bindings and the CUDA runtime."""
    if not (compiler := shutil.which("cc")):
        pytest.skip("no C compiler for a substitute of the CUDA runtime")
    folder = tmp_path_factory.mktemp("jetson")
    (folder / "tensorrt.py").write_text(TENSORRT)
    (folder / "trtexec").write_text(TRTEXEC.replace("/usr/bin/env python3", sys.executable))
    (folder / "trtexec").chmod(0o755)
    (folder / "cudart.c").write_text(CUDART)
    library = folder / "libcudart.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, folder / "cudart.c"], check=True)
    for version in ("11.0", "12", "13"):  # whichever the machine itself has
        library.with_name(f"libcudart.so.{version}").symlink_to(library)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    own = {"PATH": path, "PYTHONPATH": str(folder), "LD_LIBRARY_PATH": str(folder), "PYTHON": sys.executable}
    return os.environ | own


def written(folder: Path, report: OnnxReport, batches: tuple[int, int, int]) -> Path:
    size = report.inputs["images"][2]
    content = Bundled(
        *(report.path, report.path, [], None, report.inputs, report.outputs, (size, size), batches, 16),
        *((0.5,) * 3, (0.5,) * 3, None, report.data_type, [], True),
    )
    return write_bundle(folder, content)


@pytest.fixture(scope="module")
def bundle(vit_fp32, tmp_path_factory) -> Path:
    return written(tmp_path_factory.mktemp("bundle") / "bundle", vit_fp32, (1, 1, 4))


@pytest.mark.parametrize(
    ("batches", "more", "says"),
    [((8, 8, 8), [], "8 to 8"), ((2, 4, 6), [], "2 to 6"), ((1, 1, 4), ["--minShapes=images:3x3x48x48"], "3 to 3")],
)
def test_verify_takes_a_batch_that_the_engine_takes(batches, more, says, vit_fp32, jetson, tmp_path):
    more = more + [word.replace("min", kind) for kind in ("opt", "max") for word in more]
    folder = written(tmp_path / "bundle", vit_fp32, batches)
    done = subprocess.run([folder / "verify.sh", *more], env=jetson, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    best = 3 if more else batches[1]
    verified = json.loads(done.stdout)
    assert verified["shape"] == [best, 3, 48, 48] and min(verified["least_cosine"].values()) > 0.99999
    built = json.loads((folder / "preprocessing.json").read_text())["engine_batch"]
    assert built == dict(zip(("min", "opt", "max"), batches, strict=True))
    command = [sys.executable, folder / "infer_tensorrt.py", "--verify", "--batch", "1"]
    done = subprocess.run(command, env=jetson, capture_output=True, text=True)
    assert done.returncode == 1 and f"error: vit.engine takes {says} images at once, not 1: give --batch" in done.stderr


def test_verify_builds_compares_and_measures_and_profile_reads_what_it_prints(bundle, jetson, tmp_path, capsys):
    done = subprocess.run([bundle / "verify.sh", "--verbose"], env=jetson, capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stderr
    verified = json.loads(done.stdout)
    assert verified.keys() == VERIFIED.keys() | {"method", "python"} and "RUNNING TensorRT.trtexec" in done.stderr
    assert (verified["verified"], verified["version"], verified["shape"]) == ("vit.engine", "10.3.0", [1, 3, 48, 48])
    times = verified["latency_ms"]
    assert 0 < times["p50"] <= times["p90"] <= times["p99"] and times["calls"] == infer_tensorrt.CALLS
    assert times["warm_up"] >= 2 * infer_tensorrt.WINDOW and times["steady"] in (True, False)
    outputs = set(np.load(bundle / SAMPLE).files) - {"images"}
    assert verified["least_cosine"].keys() == outputs and min(verified["least_cosine"].values()) > 0.99999
    assert (bundle / "triton/vit/1/model.plan").read_bytes() == (bundle / "vit.engine").read_bytes()
    path = tmp_path / "verified.json"
    path.write_text(done.stdout)
    assert main(["profile", str(path)]) == 0
    lines = " ".join(capsys.readouterr().out.split())
    assert f"vit.engine (tensorrt 10.3.0) on {verified['machine']}: 1 images in" in lines
    assert lines.count("least cosine with the ONNX file") == len(outputs)


def test_verify_runs_on_the_dla_core_that_it_builds_for(bundle, jetson, tmp_path):
    folder = shutil.copytree(bundle, tmp_path / "bundle")
    more = ["--useDLACore=1", "--allowGPUFallback"]
    done = subprocess.run([folder / "verify.sh", *more], env=jetson, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert min(json.loads(done.stdout)["least_cosine"].values()) > 0.99999
    assert "warning: the DLA computes batches of one size, and this engine takes 1 to 4 images" in done.stderr
    for core, status in (("0", 1), ("1", 0)):
        command = [sys.executable, folder / "infer_tensorrt.py", "--verify", "--dla-core", core]
        assert subprocess.run(command, env=jetson, capture_output=True).returncode == status


def test_verify_tells_an_engine_of_another_graph(bundle, jetson, tmp_path):
    subprocess.run([bundle / "build_engine.sh"], env=jetson, check=True)
    model = onnx.load(str(bundle / "vit.engine"))
    for tensor in model.graph.initializer:
        if len(tensor.dims) > 1:
            tensor.CopyFrom(numpy_helper.from_array(-numpy_helper.to_array(tensor), tensor.name))
    onnx.save(model, str(tmp_path / "other.engine"))
    command = [sys.executable, bundle / "infer_tensorrt.py", "--verify", "--engine", tmp_path / "other.engine"]
    done = subprocess.run(command, env=jetson, capture_output=True, text=True)
    assert done.returncode == 0 and min(json.loads(done.stdout)["least_cosine"].values()) < 0.9
    (tmp_path / "other.engine").write_bytes(b"")
    done = subprocess.run(command, env=jetson, capture_output=True, text=True)
    assert done.returncode == 1 and "is for another GPU or TensorRT: run ./build_engine.sh here" in done.stderr


def test_the_runner_computes_the_features_of_image_files(bundle, jetson, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (3, 60, 80, 3), np.uint8)
    files = [tmp_path / f"{i}.png" for i in range(3)]
    for file, image in zip(files, pixels, strict=True):
        Image.fromarray(image).save(file)
    subprocess.run([bundle / "build_engine.sh"], env=jetson, check=True)
    for name, more in (("infer_tensorrt", ["--batch", "2"]), ("infer_onnxruntime", [])):
        command = [sys.executable, bundle / f"{name}.py", *files, *more, "--out", tmp_path / f"{name}.npz"]
        done = subprocess.run(command, env=jetson, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    ours, theirs = (np.load(tmp_path / f"{name}.npz") for name in ("infer_tensorrt", "infer_onnxruntime"))
    assert set(ours.files) == set(theirs.files)
    for name in ours.files:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("module", SCRIPTS, ids=lambda module: module.__name__.rpartition(".")[2])
def test_the_scripts_are_written_for_the_python_of_jetpack(module):
    ast.parse(Path(module.__file__).read_text(encoding="utf-8"), feature_version=(3, 10))


def test_every_name_of_tensorrt_s_that_it_uses_is_in_the_bindings():
    trt = pytest.importorskip("tensorrt_rtx_bindings", reason="the `engine` extra is not installed")
    tree = ast.parse(Path(infer_tensorrt.__file__).read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    owners = {"_runtime": trt.Runtime, "_engine": trt.ICudaEngine, "_context": trt.IExecutionContext}
    checked = set()
    for node in calls:
        text = ast.unparse(node)
        if text.startswith("tensorrt."):
            name, *rest = text.split(".")[1:]
            target = getattr(trt, name)
            assert all(hasattr(target, part) for part in rest), text
            checked.add(text)
        elif isinstance(node.value, ast.Attribute) and node.value.attr in owners:
            assert hasattr(owners[node.value.attr], node.attr), text
            checked.add(text)
    assert {"tensorrt.Runtime", "self._context.execute_async_v3", "self._engine.get_tensor_mode"} <= checked


def test_the_warm_up_lasts_until_two_medians_agree(monkeypatch):
    times = iter([8.0] * 10 + [4.0] * 10 + [2.0] * 10 + [2.05] * 10)
    monkeypatch.setattr(infer_tensorrt, "milliseconds", lambda engine: next(times))
    assert infer_tensorrt.until_steady(None) == (40, True)
    growing = iter(range(1, 10**6))
    monkeypatch.setattr(infer_tensorrt, "milliseconds", lambda engine: float(next(growing) ** 2))
    monkeypatch.setattr(infer_tensorrt, "WARM_UP_SECONDS", 0.0)
    assert infer_tensorrt.until_steady(None)[1] is False


def test_the_sample_has_the_features_that_onnxruntime_computes(vit_fp32, bundle):
    folder, size = bundle, vit_fp32.inputs["images"][2]
    assert json.loads((folder / "preprocessing.json").read_text())["engine"] == "vit.engine"
    assert (folder / "verify.sh").stat().st_mode & 0o111 and (folder / "infer_tensorrt.py").is_file()
    served = (folder / "triton/vit/config.pbtxt").read_text()
    assert (
        "max_batch_size: 4" in served and f'name: "images" data_type: TYPE_FP32 dims: [ 3, {size}, {size} ]' in served
    )
    sample = np.load(folder / SAMPLE)
    session = onnxruntime.InferenceSession(str(folder / "vit.onnx"), providers=["CPUExecutionProvider"])
    (summary,) = session.run(["summary"], {"images": sample["images"].astype(np.float32) / 255})
    assert infer_tensorrt.cosine(sample["summary"], summary) > 0.99999
    assert infer_tensorrt.cosine(sample["summary"], -summary) < -0.99999


def test_the_sample_of_a_graph_in_bf16_is_computed_in_fp32_and_a_failure_is_named(vit_fp32, tmp_path):
    model = onnx.load(vit_fp32.path)
    retype(model, "bf16")
    onnx.save(model, tmp_path / "halves.onnx")
    halves = replace(vit_fp32, path=tmp_path / "halves.onnx", data_type="bf16")
    wanted, found = (
        np.load(written(tmp_path / report.data_type, report, (1, 1, 4)) / SAMPLE) for report in (vit_fp32, halves)
    )
    assert infer_tensorrt.cosine(found["summary"], wanted["summary"]) > 0.999
    model = onnx.load(vit_fp32.path)
    model.graph.node[0].op_type = "NoSuchOperator"
    onnx.save(model, tmp_path / "broken.onnx")
    broken = replace(vit_fp32, path=tmp_path / "broken.onnx")
    sample = np.load(written(tmp_path / "broken", broken, (1, 1, 4)) / SAMPLE)
    assert set(sample.files) == {"images", "not_compared"}
    assert str(sample["not_compared"]).startswith("onnxruntime did not compute them when the bundle was written: ")


def test_what_verify_printed_is_read_back(tmp_path, capsys):
    path = tmp_path / "verified.json"
    path.write_text("&&&& PASSED TensorRT.trtexec\n" + json.dumps(VERIFIED) + "\n")
    assert main(["profile", str(path)]) == 0
    lines = " ".join(capsys.readouterr().out.split())
    assert "on NVIDIA Jetson AGX Orin Developer Kit: 1 images in 1.25 ms" in lines and "0.99910" in lines
    assert "not steady after the warm-up" in lines and "compared" not in lines
    nothing = VERIFIED | {"least_cosine": {}, "not_compared": "because", "method": "wall time"}
    path.write_text(json.dumps(nothing))
    assert main(["profile", str(path)]) == 0
    lines = " ".join(capsys.readouterr().out.split())
    assert "200 calls); wall time" in lines and "warning: no features were compared: because" in lines
    path.write_text("{}")
    assert main(["profile", str(path)]) == 1 and "verify.sh" in capsys.readouterr().err
