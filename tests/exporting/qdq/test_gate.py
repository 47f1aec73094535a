"""The gate of a quantized file: its limit is a field, and it is judged on calibration images."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from PIL import Image

from radioplat.compression.quantization.quantize_model import quantize_model
from radioplat.data.loading.sample_images import sample_images
from radioplat.errors import EngineError
from radioplat.exporting.engines.backends.onnxruntime import open_session
from radioplat.exporting.onnx import export as onnx_export
from radioplat.exporting.onnx.export import OnnxReport
from radioplat.models.student.checkpoint import load_student
from radioplat.models.vision_model import save_model
from radioplat.spec.loading.load import load_spec
from radioplat.spec.schema.quantize import QuantizeConfig
from radioplat.spec.schema.root import Spec
from radioplat.tasks.export.export import export
from tests.helpers.drawn_student import drawn_student

SIZE = 64
COARSER = 4


@pytest.fixture
def wrong_scale(monkeypatch):
    """One scale of the file is 4 times what it should be: files that are right agree to 1e-14 on some machines."""
    insert_pairs = onnx_export.insert_pairs

    def insert(model: onnx.ModelProto, stored: bool) -> list:
        ranges = insert_pairs(model, stored)
        first = next(node.input[1] for node in model.graph.node if node.op_type == "QuantizeLinear")
        (scale,) = (value for value in model.graph.initializer if value.name == first)
        scale.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(scale) * np.float32(COARSER), first))
        return ranges

    monkeypatch.setattr(onnx_export, "insert_pairs", insert)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Eight images of noise, and a student that was calibrated on them."""
    folder = tmp_path_factory.mktemp("gate")
    (folder / "images").mkdir()
    generator = np.random.default_rng(0)
    for i in range(8):
        Image.fromarray(generator.integers(0, 256, (SIZE, SIZE, 3), np.uint8)).save(folder / "images" / f"{i}.png")
    images = torch.from_numpy(sample_images(spec_of(folder), {SIZE}, 8, "quant_calibration")[SIZE])
    save_model(
        quantize_model(drawn_student("mobilenetv2_050", SIZE), QuantizeConfig(), [images]).model, folder / "int8"
    )
    return folder


def spec_of(home, *changes: str, images: bool = True) -> Spec:
    split = [f"dataset.quant_calibration_dataset.images_dir={home}/images"] if images else []
    given = {"results_dir": home / "results", "export.checkpoint": home / "int8", "dataset.img_size": SIZE}
    return load_spec(None, [*(f"{key}={value}" for key, value in given.items()), *split, *changes])


def least_cosine(report: OnnxReport, student: torch.nn.Module, images: torch.Tensor) -> float:
    """The least cosine of an image's output with torch's, by this test."""
    session = open_session(report.path, "disable_all")
    found = dict(zip(report.outputs, session.run(list(report.outputs), {"images": images.numpy()}), strict=True))
    with torch.no_grad():
        features = student(images)
    cosines = []
    for name, values in found.items():
        wanted = getattr(features, name).flatten(1)
        cosines.append(torch.cosine_similarity(torch.from_numpy(values).flatten(1), wanted, dim=1).min())
    return float(min(cosines))


@pytest.mark.usefixtures("wrong_scale")
def test_it_is_judged_on_the_calibration_images(home, tmp_path):
    fixed = (
        "export.batch_size=8",
        "export.least_cosine=0.5",
        "export.data_type=fp32",
        f"export.onnx_file={tmp_path}/a.onnx",
    )
    report = export(spec_of(home, *fixed))
    images = torch.from_numpy(sample_images(spec_of(home), {SIZE}, 8, "quant_calibration")[SIZE]) / 255
    student = load_student(home / "int8").eval()
    own = least_cosine(report, student, images)
    assert report.quantized.cosine == pytest.approx(own, abs=1e-5)
    # Without images other noise takes their place, and gives another figure.
    noise = torch.rand(8, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    without = export(spec_of(home, *fixed, images=False))
    assert without.quantized.cosine == pytest.approx(least_cosine(without, student, noise), abs=1e-5)
    record = json.loads(without.path.with_name("lint.json").read_text())
    assert (record["images"], record["on_noise"]) == (8, True)
    assert abs(report.quantized.cosine - without.quantized.cosine) > 1e-4


@pytest.mark.usefixtures("wrong_scale")
@pytest.mark.parametrize("batch", [3, -1])
def test_all_images_are_looked_at_in_as_many_steps_as_it_takes(home, tmp_path, batch):
    fixed = ("export.least_cosine=0.5", "export.data_type=fp32", f"export.onnx_file={tmp_path}/a.onnx")
    report = export(spec_of(home, *fixed, f"export.batch_size={batch}"))
    images = torch.from_numpy(sample_images(spec_of(home), {SIZE}, 8, "quant_calibration")[SIZE]) / 255
    runs = [images] if batch < 0 else [torch.cat([images, images])[i : i + batch] for i in range(0, 8, batch)]
    student = load_student(home / "int8").eval()
    own = min(least_cosine(report, student, each) for each in runs)
    assert report.quantized.cosine == pytest.approx(own, abs=1e-5)
    record = json.loads(report.path.with_name("lint.json").read_text())
    assert (record["cosine"], record["images"], record["on_noise"]) == (report.quantized.cosine, 8, False)


@pytest.mark.usefixtures("wrong_scale")
def test_its_limit_is_a_field(home, tmp_path):
    where = f"export.onnx_file={tmp_path}/a.onnx"
    report = export(spec_of(home, where, "export.least_cosine=0.5"))
    limit = report.quantized.cosine
    assert limit < 0.99999, "below, a limit above it is tried"
    report.path.unlink()
    with pytest.raises(EngineError, match=r"has cosine 0\.\d+ with torch's \(at least .* export.least_cosine\)"):
        export(spec_of(home, where, f"export.least_cosine={(1 + limit) / 2}"))
    assert not report.path.exists()
    assert export(spec_of(home, where, f"export.least_cosine={limit - 0.01}")).path.exists()


def test_images_that_cannot_be_read_are_said(home, tmp_path, capsys):
    changes = (f"export.onnx_file={tmp_path}/a.onnx", f"dataset.quant_calibration_dataset.images_dir={tmp_path}/none")
    assert export(spec_of(home, *changes)).path.exists()
    told = " ".join(capsys.readouterr().err.split() + capsys.readouterr().out.split())
    assert "the file is compared with torch on noise, not on calibration images" in told
