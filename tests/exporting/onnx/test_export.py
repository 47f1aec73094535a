"""ONNX export of real nets, judged by onnx's checker and onnxruntime."""

from __future__ import annotations

import onnx
import onnxruntime
import pytest
import torch

from radioplat.errors import EngineError
from radioplat.exporting.onnx.export import export_onnx
from radioplat.models.student.student import Student, StudentArchitecture

SIZE = 48


def run(path, images: torch.Tensor) -> dict[str, torch.Tensor]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    return {n: torch.from_numpy(a) for n, a in zip(names, session.run(names, {"images": images.numpy()}), strict=True)}


def test_names_shapes_and_report(vit_fp32):
    assert vit_fp32.inputs == {"images": ["batch", 3, SIZE, SIZE]}
    assert vit_fp32.outputs == {
        "summary": ["batch", 64],
        "spatial": ["batch", 3, 3, 64],
        "beta.summary": ["batch", 24],
        "beta.spatial": ["batch", 3, 3, 24],
        "alpha.summary": ["batch", 24],
    }
    assert (vit_fp32.opset, vit_fp32.data_type, vit_fp32.precision_error, vit_fp32.notes) == (18, "fp32", None, [])
    assert 0 < vit_fp32.max_relative_error < 1e-4
    assert vit_fp32.bytes == vit_fp32.path.stat().st_size


def test_file_computes_what_torch_computes_at_any_batch(vit, vit_fp32):
    for batch in (1, 5):
        images = torch.rand(batch, 3, SIZE, SIZE)
        with torch.no_grad():
            features = vit(images)
            head = vit.head("beta", features)
        got = run(vit_fp32.path, images)
        torch.testing.assert_close(got["spatial"], features.spatial, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(got["beta.summary"], head.summary, rtol=1e-4, atol=1e-4)


def test_fp16_runs_and_costs_little(vit, vit_fp16):
    images = torch.rand(2, 3, SIZE, SIZE)
    with torch.no_grad():
        wanted = vit(images).summary
    got = run(vit_fp16.path, images)["summary"]
    assert got.dtype == torch.float32
    assert 0 < (got - wanted).abs().max() / wanted.abs().max() < 0.02
    assert 0 < vit_fp16.precision_error < 0.02
    assert vit_fp16.inputs["images"] == [2, 3, SIZE, SIZE]


def test_bf16_folds_batchnorm_and_leaves_no_fp32_weight(conv_bf16):
    model = onnx.load(conv_bf16.path)
    assert "BatchNormalization" not in {node.op_type for node in model.graph.node}
    assert onnx.TensorProto.FLOAT not in {tensor.data_type for tensor in model.graph.initializer}
    assert 1e-4 < conv_bf16.precision_error < 0.1
    assert conv_bf16.opset == 22 and not conv_bf16.notes, "nobody asked for another one"


def test_weights_beside_the_file_are_found_and_go_with_the_next_export(conv_bf16, tmp_path):
    weights = conv_bf16.path.with_name("conv.onnx.data")
    assert conv_bf16.bytes == weights.stat().st_size + conv_bf16.path.stat().st_size
    for file in (weights, conv_bf16.path):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    onnx.checker.check_model(str(tmp_path / "conv.onnx"), full_check=True)
    export_onnx(tiny(), tmp_path / "conv.onnx", height=4, width=4, batch_size=1)
    assert [file.name for file in tmp_path.iterdir()] == ["conv.onnx"]


class _Tiny(torch.nn.Module):
    """The smallest student: mean colour, times a factor."""

    head_names: list[str] = []

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.factor = torch.nn.Parameter(torch.full((3,), factor))

    def forward(self, images):
        from radioplat.models.features import Features

        return Features(self.batch(images.mean((2, 3)) * self.factor))

    def batch(self, summary):
        return summary


def tiny(factor: float = 1.0) -> _Tiny:
    return _Tiny(factor)


class _FixesItsBatch(_Tiny):
    def batch(self, summary):
        return summary.reshape(len(summary), 3)  # len() is a number to the tracer


@pytest.mark.parametrize(("img_size", "size"), [(32, 48), (32, 32)])
def test_a_table_that_timm_resizes_is_a_constant_in_a_file_for_one_size(tmp_path, img_size, size):
    torch.manual_seed(0)
    vit = Student(StudentArchitecture("vit_tiny_patch16_224", {"depth": 1, "img_size": img_size})).eval()
    report = export_onnx(vit, tmp_path / "vit.onnx", height=size, width=size)
    graph = onnx.load(report.path).graph
    assert "Resize" not in {node.op_type for node in graph.node}  # TensorRT reads none with antialiasing
    assert {tensor.name for tensor in graph.initializer} <= {name for node in graph.node for name in node.input}
    images = torch.rand(3, 3, size, size)
    with torch.no_grad():
        wanted = vit(images).spatial
    torch.testing.assert_close(run(report.path, images)["spatial"], wanted, rtol=1e-4, atol=1e-4)


def test_nothing_reaches_the_terminal_and_the_student_is_left_alone(tmp_path, capfd):
    student = tiny().double().train()
    export_onnx(student, tmp_path / "a.onnx", height=4, width=4, opset=20)
    assert capfd.readouterr() == ("", "")
    assert student.training and student.factor.dtype == torch.float64 and student.factor.requires_grad


def test_a_forward_that_fixes_its_batch_is_told_so(tmp_path):
    with pytest.raises(EngineError, match="fixes the batch size") as caught:
        export_onnx(_FixesItsBatch(), tmp_path / "a.onnx", height=4, width=4)
    assert caught.value.problems[0].where == "export.batch_size"
    assert list(tmp_path.iterdir()) == []
    assert export_onnx(_FixesItsBatch(), tmp_path / "a.onnx", height=4, width=4, batch_size=2).path.exists()


def test_overflow_in_fp16_is_refused_and_bf16_takes_it(tmp_path):
    with pytest.raises(EngineError, match="overflows in fp16"):
        export_onnx(tiny(1e6), tmp_path / "a.onnx", height=4, width=4, data_type="fp16")
    assert list(tmp_path.iterdir()) == []
    assert export_onnx(tiny(1e6), tmp_path / "a.onnx", height=4, width=4, data_type="bf16").precision_error < 0.02


def test_a_student_with_nan_is_refused(tmp_path):
    with pytest.raises(EngineError, match="`summary` is not finite"):
        export_onnx(tiny(float("nan")), tmp_path / "a.onnx", height=4, width=4)


@pytest.mark.parametrize(
    ("wrong", "field", "says"),
    [
        ({"adaptors": ["gamma"]}, "export.adaptors", "Valid: alpha, beta"),
        ({"opset": 99}, "export.opset_version", "Valid: 17 to"),
        ({"data_type": "int8"}, "export.data_type", "quantize"),
        ({"height": 50}, "export.input_height, export.input_width", "50 x 48"),
    ],
)
def test_wrong_fields(vit, tmp_path, wrong, field, says):
    with pytest.raises(EngineError) as caught:
        export_onnx(vit, tmp_path / "a.onnx", **{"height": SIZE, "width": SIZE, **wrong})
    assert caught.value.problems[0].where == field and says in str(caught.value)


def test_old_opset_is_raised_with_a_note(tmp_path):
    report = export_onnx(tiny(), tmp_path / "a.onnx", height=4, width=4, opset=16)
    assert report.opset == 17 and "16" in report.notes[0]
    assert onnx.load(report.path).opset_import[0].version == 17


def test_a_path_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(EngineError, match="cannot write here"):
        export_onnx(tiny(), tmp_path / "file" / "a.onnx", height=4, width=4)
    with pytest.raises(EngineError, match="a folder, not a file"):
        export_onnx(tiny(), tmp_path, height=4, width=4)
