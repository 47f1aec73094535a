"""ModelOpt on an exported file: placed, run on onnxruntime, and refused by field."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from radioplat.errors import EngineError, SpecError
from radioplat.evaluation.models.onnx_file import OnnxModel
from radioplat.exporting.onnx.export import export_onnx
from radioplat.exporting.onnx.modelopt import quantize_onnx
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.tasks.quantize.report import LayerReport, QuantizeReport
from radioplat.tasks.quantize.show import show

EXPORTED: list[Path] = []  # by the first test that wants it
pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def images():
    return torch.randint(0, 256, (4, 3, 48, 48), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


@pytest.fixture
def exported(radio_student, tmp_path_factory):
    if not EXPORTED:
        path = tmp_path_factory.mktemp("exported") / "student.onnx"
        export_onnx(radio_student(), path, height=48, width=48, adaptors=["clip"])
        EXPORTED.append(path)
    return EXPORTED[0]


@pytest.mark.proof
def test_every_layer_but_those_left_out(exported, images, tmp_path, capsys):
    for format in ("int8", "fp8"):
        quantized_to(format, exported, images, tmp_path / format)
    assert capsys.readouterr().out == ""


def quantized_to(format, exported, images, folder):
    pixels, path = images.numpy().astype(np.float32) / 255, folder / "q.onnx"
    found = quantize_onnx(exported, path, pixels, format=format, exclude=[".*heads.*"])
    assert len(found.quantized) >= 9 and not set(found.quantized) & set(found.skipped)
    before, after = (OnnxModel(p, "", 1, "cpu") for p in (exported, path))
    assert after.kind == f"ONNX {format}" and after.interface.outputs == before.interface.outputs and not after.reason
    a, b = before.encode(images), after.encode(images)
    assert torch.cosine_similarity(a.summary, b.summary).min() > 0.98
    assert not torch.equal(a.summary, b.summary)
    assert [p.name for p in path.parent.iterdir()] == ["q.onnx"]
    scales = {t.data_type for t in onnx.load(path).graph.initializer if "scale" in t.name}
    assert onnx.TensorProto.FLOAT16 in scales and found.notes == ["layers that are not quantized are in fp16"]
    with pytest.raises(EngineError, match="quantized already"):
        quantize_onnx(path, folder / "again.onnx", pixels)


def test_onnxruntime_s_own_calibration_is_left_as_it_was(exported, images, tmp_path):
    """ModelOpt replaces methods of onnxruntime's calibrators; ``export.cpu`` in the same process failed after it."""
    from onnxruntime.quantization import calibrate

    holders = (calibrate, calibrate.CalibraterBase, calibrate.MinMaxCalibrater, calibrate.HistogramCollector)
    before = [dict(vars(holder)) for holder in holders]
    quantized_to("int8", exported, images, tmp_path)
    assert [dict(vars(holder)) for holder in holders] == before


@pytest.mark.parametrize("format", ["int8", "fp8"])
def test_the_rest_is_in_bf16_where_a_tensor_overflows_in_fp16(format, images, tmp_path):
    """The outputs stay finite: nothing reads the channel that overflows."""
    torch.manual_seed(0)
    student = Student(StudentArchitecture("test_resnet", img_size=48)).eval()
    block = student.get_submodule("backbone.model.layer1.0")
    with torch.no_grad():
        block.bn1.bias[0] = 1e5
        block.conv2.weight[:, 0] = 0
    export_onnx(student, tmp_path / "s.onnx", height=48, width=48, batch_size=2)
    pixels, path = images.numpy().astype(np.float32) / 255, tmp_path / "q.onnx"
    (note,) = quantize_onnx(tmp_path / "s.onnx", path, pixels, format=format).notes
    assert note.startswith("layers that are not quantized are in bf16: ") and note.endswith(" overflows in fp16")
    scales = {t.data_type for t in onnx.load(path).graph.initializer if "scale" in t.name}
    assert onnx.TensorProto.BFLOAT16 in scales and onnx.TensorProto.FLOAT16 not in scales
    (note,) = quantize_onnx(
        tmp_path / "s.onnx", path, pixels, format=format, options={"high_precision_dtype": "fp16"}
    ).notes
    assert note == "layers that are not quantized are in fp16"


def test_what_it_does_not_take_is_named(exported, images, tmp_path):
    pixels = images.numpy().astype(np.float32) / 255
    with pytest.raises(SpecError, match="modelopt.onnx has no argument blocksize. Valid: .*block_s"):
        quantize_onnx(exported, tmp_path / "q.onnx", pixels, options={"blocksize": 3})
    (tmp_path / "no.onnx").write_text("this is text")
    with pytest.raises(EngineError, match="is not an ONNX file"):
        quantize_onnx(tmp_path / "no.onnx", tmp_path / "q.onnx", pixels)
    with pytest.raises(EngineError, match="quantize.backend: ModelOpt"):
        quantize_onnx(exported, tmp_path / "q.onnx", pixels[:, :, :16])
    assert not (tmp_path / "q.onnx").exists()


def test_the_terminal_calls_no_quantized_layer_float(capsys):
    show(QuantizeReport(Path("q.onnx"), Path("s.onnx"), [LayerReport("conv", "Conv")], {}, 1, {}))
    said = capsys.readouterr().out
    assert said.count("quantized") == 2 and "float" not in said
