"""Students whose branches are fused before they are pruned or quantized."""

from __future__ import annotations

import pytest
import torch

from radioplat.compression.quantization.quantize_model import quantize_model
from radioplat.models.student.checkpoint import load_student
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.models.vision_model import save_model
from radioplat.spec.schema.quantize import QuantizeConfig
from tests.helpers.drawn_student import drawn_student

SIZE = 64
FAMILIES = ["mobileone_s0", "repvgg_a0", "repvit_m0_9", "fastvit_t8"]


@pytest.mark.parametrize("name", FAMILIES)
def test_the_features_stay_and_the_checkpoint_is_read_back(name, tmp_path):
    student = drawn_student(name, SIZE)
    images = torch.rand(2, 3, SIZE, SIZE)
    with torch.no_grad():
        wanted = student(images)
        fused = student.fuse_branches()
        features = fused(images)
    for output in ("summary", "spatial"):
        value = getattr(wanted, output)
        torch.testing.assert_close(getattr(features, output), value, rtol=1e-4, atol=1e-5 * float(value.abs().max()))
    assert fused.architecture.fused_branches
    save_model(fused, tmp_path / "fused")
    with torch.no_grad():
        again = load_student(tmp_path / "fused").eval()(images)
    assert torch.equal(again.summary, features.summary)


def test_a_student_without_branches_stays_as_it_is():
    student = Student(StudentArchitecture("resnet18", img_size=SIZE)).fuse_branches()
    assert not student.architecture.fused_branches


def test_a_quantized_student_has_one_scale_a_block(tmp_path):
    student = drawn_student("mobileone_s0", SIZE)
    images = torch.randint(0, 256, (4, 3, SIZE, SIZE), dtype=torch.uint8)
    done = quantize_model(student, QuantizeConfig(), [images])
    assert done.model.architecture.fused_branches and not student.architecture.fused_branches
    assert len(done.model.architecture.quantized.layers) <= 43
    assert done.cosine["summary"] > 0.98
    save_model(done.model, tmp_path / "quantized")
    with torch.no_grad():
        assert torch.equal(load_student(tmp_path / "quantized").eval()(images).summary, done.model(images).summary)
