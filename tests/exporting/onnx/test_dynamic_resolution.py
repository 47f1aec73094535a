"""ONNX files that take images of any size."""

from __future__ import annotations

import onnxruntime
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from radioplat.errors import EngineError
from radioplat.exporting.onnx.dynamic_resolution import step_of, traced_size, tried_sizes
from radioplat.exporting.onnx.export import export_onnx
from radioplat.models.heads import HeadArchitecture
from radioplat.models.student.student import Student, StudentArchitecture


def radio_vit() -> Student:
    torch.manual_seed(0)
    head = HeadArchitecture("clip", summary_dim=12, spatial_dim=12, hidden=16)
    kwargs = {"embed_dim": 32, "depth": 1, "num_heads": 2}
    return Student(StudentArchitecture("radio_vit_tiny_patch16", kwargs, img_size=64, heads=(head,))).eval()


def timm_vit() -> Student:
    return Student(StudentArchitecture("test_vit", {"depth": 1}, img_size=64)).eval()


@pytest.mark.parametrize(
    ("student", "data_type", "tolerance"),
    [
        (radio_vit, "fp32", 1e-4),
        pytest.param(timm_vit, "fp16", 0.02, marks=pytest.mark.proof),
        (lambda: Student(StudentArchitecture("test_resnet", img_size=64)).eval(), "fp32", 1e-4),
        # TensorFlow's padding depends on the side: 3 with a stride of 2 pads an even side by 1, an odd one by 2.
        (lambda: Student(StudentArchitecture("tf_mobilenetv3_small_minimal_100", img_size=64)).eval(), "fp32", 1e-4),
    ],
    ids=["radio", "vit", "cnn", "same"],
)
def test_one_file_takes_images_of_every_size(student, data_type, tolerance, tmp_path):
    student = student()
    adaptors = student.head_names
    report = export_onnx(
        student,
        tmp_path / "any.onnx",
        height=64,
        width=64,
        dynamic_resolution=True,
        adaptors=adaptors,
        data_type=data_type,
    )
    assert report.inputs == {"images": ["batch", 3, "height", "width"]}
    assert report.outputs["spatial"][:3] == ["batch", "rows", "columns"]
    session = onnxruntime.InferenceSession(str(report.path), providers=["CPUExecutionProvider"])
    # Smaller and larger than the position table and than what was traced, wide, tall, and the table's own size.
    for height, width in ((64, 64), (32, 96), (160, 64)):
        images = torch.rand(2, 3, height, width)
        with torch.no_grad():
            features = student(images)
            wanted = [features.summary, features.spatial]
            wanted += [student.head(name, features).spatial for name in adaptors]
        names = ["summary", "spatial", *(f"{name}.spatial" for name in adaptors)]
        for got, want in zip(session.run(names, {"images": images.numpy()}), wanted, strict=True):
            assert got.shape == want.shape
            assert float((torch.from_numpy(got) - want).abs().max() / want.abs().max()) < tolerance


def test_a_backbone_of_one_size_is_refused(tmp_path):
    kwargs = {"embed_dim": 16, "depths": [1, 1], "num_heads": [1, 2], "window_size": 4}
    swin = Student(StudentArchitecture("swin_tiny_patch4_window7_224", kwargs, img_size=32)).eval()
    with pytest.raises(EngineError, match="swin_tiny_patch4_window7_224 is built for images of one size") as caught:
        export_onnx(swin, tmp_path / "a.onnx", height=32, width=32, dynamic_resolution=True)
    assert caught.value.problems[0].where == "export.dynamic_resolution"


def test_a_size_that_is_no_multiple_of_the_patch_is_refused(tmp_path):
    with pytest.raises(EngineError, match="50 x 64") as caught:
        export_onnx(radio_vit(), tmp_path / "a.onnx", height=50, width=64, dynamic_resolution=True)
    assert caught.value.problems[0].where == "export.input_height, export.input_width"


@given(st.integers(1, 300), st.integers(1, 300), st.sampled_from([1, 8, 14, 16, 32]))
def test_traced_sides_are_whole_steps_unlike_and_more_than_one(height, width, step):
    h, w = traced_size(height, width, step)
    assert h % step == 0 == w % step and h != w and min(h, w) >= 2 * step
    other = tried_sizes(height, width, step)[1]
    assert other[0] > height and other[1] > width and other[0] % step == 0 == other[1] % step


def test_the_step_is_the_stride():
    assert step_of(radio_vit()) == 16
