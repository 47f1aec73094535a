"""Blocks whose branches are one convolution in evaluation are exported as that convolution, with the same outputs."""

from __future__ import annotations

import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from radioplat.exporting.onnx.export import export_onnx
from tests.helpers.drawn_student import drawn_student

SIZE = 64


@pytest.mark.parametrize(
    ("name", "most"), [("mobileone_s0", 43), ("repvgg_a0", 25), ("repvit_m0_9", 105), ("fastvit_t8", 60)]
)
def test_the_file_has_one_convolution_a_block_and_computes_the_same(name, most, tmp_path):
    student = drawn_student(name, SIZE)
    images = torch.rand(2, 3, SIZE, SIZE)
    with torch.no_grad():
        wanted = student(images)
    branches = sum(isinstance(module, nn.Conv2d) for module in student.modules())
    report = export_onnx(student, tmp_path / "a.onnx", height=SIZE, width=SIZE)
    session = onnxruntime.InferenceSession(str(report.path), providers=["CPUExecutionProvider"])
    found = dict(zip(report.outputs, session.run(list(report.outputs), {"images": images.numpy()}), strict=True))
    for output in ("summary", "spatial"):
        value = getattr(wanted, output)
        assert (torch.from_numpy(found[output]) - value).abs().max() <= 1e-5 * value.abs().max()
    convolutions = sum(node.op_type == "Conv" for node in onnx.load(report.path).graph.node)
    assert convolutions <= most < branches and f"instead of {branches}" in report.notes[0]
    with torch.no_grad():  # the student itself goes on as it was
        assert torch.equal(student(images).summary, wanted.summary)
    assert sum(isinstance(module, nn.Conv2d) for module in student.modules()) == branches
