"""Which tasks take a student: what the list says is what the tasks do."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from radioplat.compression.low_rank import decompose
from radioplat.compression.pruning.prune import require_plain
from radioplat.compression.quantization.quantize_model import quantize_model
from radioplat.design.student import build_on_meta
from radioplat.errors import SpecError
from radioplat.models.backbones.pyramid import Pyramid
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.spec.schema.low_rank import LowRankConfig
from radioplat.spec.schema.quantize import QuantizeConfig
from radioplat.tasks.plan.accepts import accepted_tasks

SMALL = {"embed_dim": 48, "depth": 2, "num_heads": 3}
OF_RADIO = {"export radio", "export hf", "export hf_native"}  # the formats of RADIO ViTs


def said(architecture):
    return {line.task: line for line in accepted_tasks(architecture)}


def refused(architecture):
    return {task for task, line in said(architecture).items() if line.accepted is False}


def test_a_radio_vit_goes_everywhere():
    lines = said(StudentArchitecture("radio_vit_tiny_patch16", SMALL | {"final_norm": False}, img_size=64))
    assert all(line.accepted for task, line in lines.items() if task != "prune")
    assert lines["prune"].accepted is None
    assert "4 x 4 cells" in lines["segmentation"].detail and "strides 8, 16, 32" in lines["detection"].detail


@pytest.mark.parametrize(
    ("architecture", "tasks"),
    [
        (StudentArchitecture("test_vit", img_size=160), OF_RADIO),
        (StudentArchitecture("test_resnet", img_size=64), OF_RADIO),
        # One cell: nothing can be told apart in it.
        (StudentArchitecture("test_resnet", img_size=32), OF_RADIO | {"segmentation", "change"}),
        (
            StudentArchitecture("vit_tiny_patch16_224", {"patch_size": 15, "depth": 1}, img_size=60),
            OF_RADIO | {"detection"},
        ),
        (StudentArchitecture("mixer_s16_224"), OF_RADIO | {"detection"}),
    ],
)
def test_others_are_refused_by_some(architecture, tasks):
    assert refused(architecture) == tasks
    if "detection" in tasks:  # as building one does
        with pytest.raises(SpecError) as error:
            Pyramid(build_on_meta(architecture).backbone)
        assert error.value.problems[0].message == said(architecture)["detection"].detail


def test_what_compression_leaves_is_taken_by_fewer():
    student = Student(StudentArchitecture("radio_vit_tiny_patch16", SMALL, img_size=32)).eval()
    narrow = decompose(student, LowRankConfig(ratio=0.3))[0].architecture
    assert refused(narrow) == OF_RADIO | {"prune", "export timm"}
    images = [torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)]
    quantized = quantize_model(student, QuantizeConfig(), images).model.architecture
    assert refused(quantized) == OF_RADIO | {"detection", "prune", "low_rank", "quantize", "export timm"}
    for form in (narrow, quantized):
        with pytest.raises(SpecError) as error:
            require_plain(form)
        assert error.value.problems[0].message == said(form)["prune"].detail


def test_a_classifier_is_told(tmp_path):
    plain = StudentArchitecture("test_efficientnet", img_size=64)
    assert "a classifier by `train`" in said(plain)["classification"].detail
    assert "classifies 7 classes" in said(replace(plain, num_classes=7))["classification"].detail
