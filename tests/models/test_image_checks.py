"""Images that a student or a detector cannot read are errors that say what was given and what is wanted."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from radioplat.errors import DataError, RadioplatError, SpecError
from radioplat.models.heads import HeadArchitecture
from radioplat.models.student.student import Student, StudentArchitecture

HEADS = tuple(HeadArchitecture(name, summary_dim=8, spatial_dim=8) for name in ("clip", "dinov2"))


@pytest.fixture(scope="module")
def student() -> Student:
    """A plain ViT of timm's with patches of 16 pixels and two heads."""
    torch.manual_seed(0)
    return Student(StudentArchitecture("test_vit", img_size=32, heads=HEADS)).eval()


def images(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(1))


MEAN, STD = (torch.tensor(values).view(1, 3, 1, 1) for values in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
GIVEN = {
    "array": (np.zeros((1, 3, 32, 32), np.uint8), "this is a ndarray, not a tensor", "torch.from_numpy"),
    "list": ([images(3, 32, 32)], "this is a list, not a tensor", "RGB images"),
    "int64": (torch.zeros(1, 3, 32, 32, dtype=torch.int64), "these are int64", "images.to(torch.uint8)"),
    "one image": (images(3, 32, 32), "without the axis of the batch", "images[None]"),
    "one image of an array": (images(32, 32, 3), "channels last", "images.permute(2, 0, 1)[None]"),
    "five axes": (images(1, 1, 3, 32, 32), "has 5 axes instead of four", "RGB images"),
    "channels last": (images(2, 32, 32, 3), "channels last", "images.permute(0, 3, 1, 2)"),
    "grey": (images(2, 1, 32, 32), "1 channels (grey images?)", "RGB images"),
    "alpha": (images(2, 4, 32, 32), "4 channels (RGBA?)", "RGB images"),
    "no patch": (images(1, 3, 50, 32), "50 x 32 pixels are not multiples of 16", "to 48 x 32"),
    "too small": (images(1, 3, 8, 8), "8 x 8 pixels are not multiples of 16", "to 16 x 16"),
    "empty": (images(0, 3, 32, 32), "[0, 3, 32, 32] has no pixels", "RGB images"),
    "normalised": ((images(1, 3, 32, 32) - MEAN) / STD, "the floats are from -2", "leave your own normalisation out"),
    "0 to 255": (images(1, 3, 32, 32) * 255, "and not from 0 to 1", "Divide them by 255, or give uint8"),
    "-1 to 1": (images(1, 3, 32, 32) * 2 - 1, "the floats are from -1 to", "leave your own normalisation out"),
    "NaN": (images(1, 3, 32, 32) * torch.nan, "not a number (NaN)", "steps before"),
    "another device": (
        torch.zeros(1, 3, 32, 32, device="meta"),
        "on meta, and the model is on cpu",
        "images.to('cpu')",
    ),
}


@pytest.mark.parametrize(("given", "message", "hint"), GIVEN.values(), ids=list(GIVEN))
def test_wrong_images_are_errors_with_advice(student, given, message, hint):
    with pytest.raises(DataError) as caught:
        student(given)
    (problem,) = caught.value.problems
    assert problem.where == "images" and message in problem.message and hint in problem.hint


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.uint8])
def test_right_images_of_every_type_are_read(student, dtype):
    whole = torch.randint(0, 256, (2, 3, 32, 48), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
    given = whole if dtype is torch.uint8 else (whole.float() / 255).to(dtype)
    assert student(given).summary.shape == (2, student.backbone.summary_dim)
    assert student(torch.tensor([0, 1 + 1e-3]).view(2, 1, 1, 1).expand(2, 3, 32, 32)).spatial.isfinite().all()


def test_a_convolutional_student_reads_any_size():
    student = Student(StudentArchitecture("resnet10t", img_size=32)).eval()
    assert student(images(1, 3, 50, 37)).spatial.shape[:3] == (1, 2, 2)


def test_training_reads_the_values_of_the_first_floats_alone(student, monkeypatch):
    """A GPU need not be waited for in each step; uint8, the form of a run, costs no step at all."""
    own = Student(student.architecture).train()
    read: list[torch.Tensor] = []
    monkeypatch.setattr("radioplat.models.student.student.check_range", read.append)
    for given in (images(1, 3, 32, 32).mul(255).byte(), images(1, 3, 32, 32), images(1, 3, 32, 32)):
        own(given)
    assert len(read) == 1
    own.eval()(images(1, 3, 32, 32))
    assert len(read) == 2


def test_a_wrong_head_has_the_nearest_name(student):
    features = student(images(1, 3, 32, 32))
    assert student.head("clip", features).summary.shape == (1, 8)
    with pytest.raises(RadioplatError, match=r"no head named 'clpi'. Did you mean 'clip'\? Valid: clip, dinov2"):
        student.head("clpi", features)
    with pytest.raises(RadioplatError, match=r"this is a Tensor, not Features. Give what student\(images\) returned"):
        student.head("clip", features.summary)
    with pytest.raises(RadioplatError, match=r"this is a Features, not a name. Write student.head\('clip', features\)"):
        student.head(features, "clip")
    with pytest.raises(RadioplatError, match="This student has no heads"):
        Student(StudentArchitecture("resnet10t")).head("clip", features)


def test_a_detector_reads_the_same_images():
    pytest.importorskip("transformers")
    from drawn_detector import SIZE, drawn_detector

    detector = drawn_detector()
    with pytest.raises(DataError, match="leave your own normalisation out"):
        detector.detect((images(1, 3, SIZE, SIZE) - MEAN) / STD)
    with pytest.raises(SpecError, match=f"Multiples of {detector.stride}"):
        detector.detect(images(1, 3, SIZE + 1, SIZE))
