"""From a spec, a checkpoint and real photographs to scales, caches, files for CPUs and a bundle that is used."""

from __future__ import annotations

import copy
import json
import os
import runpy
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
import skimage
import torch
from PIL import Image

from radioplat.common.cpu_threads import has_int8_units
from radioplat.data.loading.sample_images import sample_images
from radioplat.errors import DataError, EngineError, SpecError
from radioplat.exporting.deploy import infer_onnxruntime
from radioplat.exporting.onnx.export import OnnxReport
from radioplat.models.quantized.architecture import LayerFormats
from radioplat.models.quantized.quantizer import in_float
from radioplat.models.student.checkpoint import save_student
from radioplat.models.student.student import Student
from radioplat.spec.loading.load import load_spec
from radioplat.tasks.export.export import export
from tests.helpers.calibration_cache import read_cache

from .conftest import SIZE, VIT, quantized_student


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """Twelve pieces of photographs that scikit-image bundles."""
    folder = tmp_path_factory.mktemp("photographs")
    for name in ("astronaut", "coffee", "rocket"):
        image = Image.fromarray(getattr(skimage.data, name)())
        for i in range(4):
            image.crop((60 * i, 40 * i, 60 * i + 160, 40 * i + 120)).save(folder / f"{name}{i}.png")
    return folder


def checkpoint(folder, student: Student):
    folder.mkdir(parents=True)
    save_student(student, student.state_dict(), folder)
    return folder


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory, int8_vit):
    folder = tmp_path_factory.mktemp("checkpoints")
    torch.manual_seed(0)
    return {
        "fp32": checkpoint(folder / "fp32", Student(VIT).eval()),
        "int8": checkpoint(folder / "int8", int8_vit),
        "fp8": checkpoint(folder / "fp8", quantized_student(VIT, LayerFormats("fp8", "fp8"))),
    }


def run(results, checkpoint, photographs, *changes: str) -> OnnxReport:
    given = {
        "results_dir": results,
        "export.checkpoint": checkpoint,
        "dataset.img_size": SIZE,
        "dataset.batch_size": 4,
        "dataset.quant_calibration_dataset.images_dir": photographs,
        "quantize.calibration_batches": 3,
    }
    return export(load_spec(None, [*(f"{key}={value}" for key, value in given.items()), *changes]))


@pytest.fixture(scope="module")
def forced(tmp_path_factory, checkpoints, photographs):
    """An fp32 student with a scale for every tensor, a cache, dynamic INT8 for CPUs, and a bundle."""
    folder = tmp_path_factory.mktemp("forced")
    changes = ["export.force_ptq=true", "export.tensorrt_version=8.6.1", "export.cpu=dynamic"]
    return run(folder, checkpoints["fp32"], photographs, *changes, f"export.bundle={folder / 'bundle'}")


@pytest.fixture(scope="module")
def cached(tmp_path_factory, checkpoints, photographs):
    """A quantized student with a cache of its learned scales, and a bundle."""
    folder = tmp_path_factory.mktemp("cached")
    changes = ["export.calibration_cache=true", "export.tensorrt_version=10.3", "export.batch_size=4"]
    return run(folder, checkpoints["int8"], photographs, *changes, f"export.bundle={folder / 'bundle'}")


def float_values(path) -> set[str]:
    """Every float tensor that a session gives when it is asked for all that nodes make."""
    model = onnx.shape_inference.infer_shapes(onnx.load(path))
    known = {t.name for t in model.graph.initializer}
    typed = [*model.graph.value_info, *model.graph.output]
    made = {name for node in model.graph.node for name in node.output if node.op_type != "Constant"}
    float32 = onnx.TensorProto.FLOAT
    return {v.name for v in typed if v.type.tensor_type.elem_type == float32 and v.name in made - known}


def test_force_ptq_has_a_scale_for_every_tensor(forced, checkpoints, photographs):
    ranges = {e["tensor"]: e for e in json.loads(forced.path.with_name("ranges.json").read_text())}
    assert set(ranges) == float_values(forced.path) | {"images"}
    assert all(e["amax"] > 0 and e["axis"] == -1 and e["source"] == "calibrated" for e in ranges.values())
    spec = load_spec(None, [f"dataset.quant_calibration_dataset.images_dir={photographs}", "dataset.img_size=32"])
    spec.results_dir = str(forced.path.parent.parent)
    pixels = sample_images(spec, {SIZE}, 12, "quant_calibration")[SIZE]
    assert len(pixels) == 12 and ranges["images"]["amax"] == pytest.approx(pixels.max() / 255)
    torch.manual_seed(0)
    with torch.no_grad():
        spatial = Student(VIT).eval()(torch.from_numpy(pixels)).spatial
    assert ranges["spatial"]["amax"] == pytest.approx(spatial.abs().max().item(), rel=1e-4)


def test_force_ptq_takes_the_weights_of_a_quantized_student_and_leaves_its_scales(
    checkpoints, photographs, int8_vit, tmp_path
):
    changes = ["export.force_ptq=true", "export.calibration_cache=true", "export.tensorrt_version=8.6.1"]
    report = run(tmp_path, checkpoints["int8"], photographs, *changes)
    ranges = {e["tensor"]: e for e in json.loads(report.path.with_name("ranges.json").read_text())}
    assert report.quantized is None and set(ranges) == float_values(report.path) | {"images"}
    assert not [n for n in onnx.load(report.path).graph.node if "Quantize" in n.op_type]
    assert set(read_cache(report.path.with_suffix(".cache"))[1]) == set(ranges)
    images = torch.rand(2, 3, SIZE, SIZE)
    with torch.no_grad(), in_float(int8_vit):
        wanted = int8_vit(images).summary
    session = onnxruntime.InferenceSession(report.path)
    torch.testing.assert_close(
        torch.from_numpy(session.run(["summary"], {"images": images.numpy()})[0]), wanted, rtol=1e-4, atol=1e-4
    )


@pytest.mark.proof
def test_no_file_holds_lines_of_source(checkpoints, photographs, tmp_path):
    for which in ("fp32", "int8"):
        report = run(tmp_path / which, checkpoints[which], photographs)
        assert b".py" not in report.path.read_bytes()


def test_the_cache_holds_the_same_scales_for_tensors_of_the_graph(forced):
    first, scales = read_cache(forced.path.with_suffix(".cache"))
    ranges = {e["tensor"]: e["scale"] for e in json.loads(forced.path.with_name("ranges.json").read_text())}
    assert first == "TRT-8601-EntropyCalibration2" and scales == pytest.approx(ranges)


def test_a_quantized_student_s_cache_speaks_of_the_graph_without_pairs(cached, int8_vit):
    first, scales = read_cache(cached.path.with_suffix(".cache"))
    plain = onnx.load(cached.path.with_name("student.float.onnx"))
    used = {name for node in plain.graph.node for name in node.input}
    assert first == "TRT-100300-EntropyCalibration2" and set(scales) <= used
    assert not [node for node in plain.graph.node if "Quantize" in node.op_type]
    learned = sorted(q.input_quantizer.scale.item() for q in int8_vit.modules() if hasattr(q, "input_quantizer"))
    assert sorted(scales.values()) == pytest.approx(learned)


def trtexec(folder, bundle, *more: str) -> list[str]:
    """The arguments that the bundle's script gives to the ``trtexec`` on PATH, which here writes them down."""
    fake = folder / "bin" / "trtexec"
    fake.parent.mkdir()
    fake.write_text('#!/bin/sh\nfor word in "$@"; do echo "$word"; done\npwd\n')
    fake.chmod(0o755)
    environment = {"PATH": f"{fake.parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run([bundle / "build_engine.sh", *more], env=environment, capture_output=True, text=True, cwd="/")
    assert done.returncode == 0 and not done.stderr, done.stderr
    *words, where = done.stdout.splitlines()
    assert os.path.samefile(where, bundle)
    assert all((bundle / word.partition("=")[2]).exists() for word in words if word.startswith(("--onnx", "--calib")))
    return words


def test_the_bundle_s_script_calls_trtexec_with_the_cache(forced, tmp_path):
    assert trtexec(tmp_path, forced.path.parents[1] / "bundle", "--verbose") == [
        "--onnx=student.onnx",
        "--saveEngine=student.engine",
        "--sparsity=enable",
        "--minShapes=images:1x3x32x32",
        "--optShapes=images:8x3x32x32",
        "--maxShapes=images:16x3x32x32",
        "--int8",
        "--fp16",
        "--calib=student.cache",
        "--verbose",
    ]


@pytest.mark.parametrize(("scale", "batch"), [(1.0, -1), (5e4, -1), (5e4, 3)])
def test_tensorrt_8_may_choose_fp16_unless_it_overflows(scale, batch, checkpoints, int8_vit, photographs, tmp_path):
    large = copy.deepcopy(int8_vit)
    with torch.no_grad():
        large.backbone.norm.weight.mul_(scale)
        large.backbone.norm.bias.mul_(scale)
    changes = ["export.tensorrt_version=8.6.1", "export.stored_weights=false", f"export.bundle={tmp_path / 'bundle'}"]
    changes.append(f"export.batch_size={batch}")
    report = run(tmp_path, checkpoint(tmp_path / "student", large), photographs, *changes)
    assert report.data_type == "fp32"
    words = trtexec(tmp_path, tmp_path / "bundle")
    assert "--int8" in words and ("--fp16" in words) == (scale == 1.0)
    described = report.side_files.files[tmp_path / "bundle"]
    assert described.startswith("bundle") and ("overflows" in described) == (scale != 1.0)


def test_a_quantized_bundle_builds_from_the_graph_that_the_cache_is_of(cached, tmp_path):
    words = ["--onnx=student.float.onnx", "--saveEngine=student.float.engine", "--sparsity=enable"]
    assert trtexec(tmp_path, cached.path.parents[1] / "bundle") == [*words, "--int8", "--fp16", "--calib=student.cache"]


def test_without_trtexec_the_script_says_so(forced):
    bundle = forced.path.parents[1] / "bundle"
    done = subprocess.run([bundle / "build_engine.sh"], env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True)
    assert done.returncode == 1 and "no trtexec on PATH" in done.stderr


BLOCKED = """
import runpy, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("radioplat", "torch"):
            raise ImportError(f"{name} was imported")
sys.meta_path.insert(0, Refuse())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize("which", ["forced", "cached"])
def test_the_bundle_gives_features_where_there_is_no_radioplat(which, request, photographs, tmp_path):
    report = request.getfixturevalue(which)
    images = [str(path) for path in sorted(photographs.iterdir())[:5]]  # of a graph of 4: two batches, one filled up
    command = [str(report.path.parents[1] / "bundle" / "infer_onnxruntime.py"), *images, "--out", "f.npz"]
    done = subprocess.run([sys.executable, "-I", "-c", BLOCKED, *command], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    got = np.load(tmp_path / "f.npz")
    prepared = np.stack([infer_onnxruntime.prepare(path, SIZE, SIZE) for path in images])
    session = onnxruntime.InferenceSession(str(report.path), providers=["CPUExecutionProvider"])
    wanted = session.run(["summary"], {"images": np.resize(prepared, (8, 3, SIZE, SIZE))[:4]})[0]
    assert got["summary"].shape == (5, wanted.shape[1])
    np.testing.assert_allclose(got["summary"][:4], wanted, rtol=1e-3, atol=1e-4)


def test_the_bundle_prepares_images_as_evaluation_does(forced, photographs):
    spec = load_spec(None, [f"dataset.quant_calibration_dataset.images_dir={photographs}"])
    spec.results_dir = str(forced.path.parent.parent)
    theirs = sample_images(spec, {SIZE}, 12, "quant_calibration")[SIZE]
    ours = np.stack([infer_onnxruntime.prepare(str(path), SIZE, SIZE) for path in sorted(photographs.iterdir())])
    worst = min(np.abs(ours[0] * 255 - image.astype(float)).max() for image in theirs)
    assert worst <= 1.01  # one level of 255: two libraries round differently


def test_preprocessing_says_what_the_graph_takes_and_gives(cached):
    told = json.loads((cached.path.parents[1] / "bundle" / "preprocessing.json").read_text())
    assert told["input"] | {} == told["input"]
    assert (told["input"]["shape"], told["input"]["batch"], told["input"]["layout"]) == ([4, 3, 32, 32], 4, "NCHW")
    assert told["normalisation"]["mean"] == list(VIT.mean) and "inside the graph" in told["normalisation"]["where"]
    assert told["outputs"]["spatial"]["shape"] == [4, 2, 2, 32]


def test_dynamic_int8_for_cpus_is_smaller_and_close(forced):
    cpu = forced.side_files.cpu
    assert (cpu.method, cpu.layers, cpu.quantized) == ("dynamic", 9, 9)
    assert cpu.cosine > (0.999 if has_int8_units() else 0.99) and cpu.bytes < 0.6 * cpu.fp32_bytes and cpu.seconds > 0
    assert json.loads(cpu.path.with_name(f"{cpu.path.name}.json").read_text())["cosine"] == cpu.cosine


@pytest.mark.parametrize(
    ("which", "changes", "error", "says"),
    [
        ("int8", ["cpu=static"], EngineError, "export.cpu: the student is quantized already"),
        ("fp32", ["calibration_cache=true", "tensorrt_version=10.3"], EngineError, "has no scales to cache"),
        ("fp32", ["calibration_cache=true"], SpecError, "export.tensorrt_version: a calibration cache needs"),
        (
            "int8",
            ["calibration_cache=true", "tensorrt_version=11.0"],
            SpecError,
            "TensorRT 11 has no calibration cache",
        ),
        ("int8", ["calibration_cache=true", "tensorrt_version=eight"], SpecError, "'eight' is not a version"),
        ("fp32", ["cpu=static", "data_type=fp16"], SpecError, "export.cpu: it needs an fp32 file, not fp16"),
        ("fp32", ["force_ptq=true", "data_type=bf16"], SpecError, "export.force_ptq: it needs an fp32 file, not bf16"),
        ("fp32", ["cpu=dynamic", "cpu_target=arm"], SpecError, "export.cpu_target: it applies to export.cpu=static"),
        ("fp32", ["format=safetensors", "bundle=b"], SpecError, "export.bundle: format safetensors writes no ONNX"),
    ],
)
def test_what_cannot_be_is_one_sentence(which, changes, error, says, checkpoints, photographs, tmp_path):
    with pytest.raises(error) as caught:
        run(tmp_path, checkpoints[which], photographs, *(f"export.{change}" for change in changes))
    assert says in str(caught.value) and len(str(caught.value).splitlines()) == 1


def test_an_fp8_student_has_no_int8_cache(checkpoints, photographs, tmp_path):
    changes = ["export.calibration_cache=true", "export.tensorrt_version=10.3", "export.batch_size=1"]
    with pytest.raises(EngineError, match="a cache contains INT8 scales, and this student is fp8"):
        run(tmp_path, checkpoints["fp8"], photographs, *changes)


def test_images_of_one_colour_and_none_at_all_are_refused(checkpoints, tmp_path):
    (tmp_path / "grey").mkdir()
    for i in range(3):
        Image.new("RGB", (64, 48), (128, 128, 128)).save(tmp_path / "grey" / f"{i}.png")
    (tmp_path / "empty").mkdir()
    for name, says in (("grey", "all calibration images are of one colour"), ("empty", "quant_calibration_dataset")):
        with pytest.raises(DataError, match=says) as caught:
            run(tmp_path / name / "r", checkpoints["fp32"], tmp_path / name, "export.force_ptq=true")
        assert len(str(caught.value).splitlines()) == 1


def test_the_script_is_the_one_that_is_shipped():
    """Nothing of ours may be imported in it, not even by accident of its place."""
    names = runpy.run_path(infer_onnxruntime.__file__)
    assert not [value for value in names.values() if getattr(value, "__name__", "").startswith("radioplat")]
