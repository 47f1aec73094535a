"""RT-DETR on a student's backbone: maps, losses, what it finds, and the same detector from its file."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file

from radioplat.errors import SpecError, WeightsError
from radioplat.models.detectors.base import Detector, DetectorArchitecture, best_boxes, detector_on
from radioplat.models.detectors.checkpoint import DETECTOR_FILE, load_detector, save_detector
from radioplat.models.student.student import Student, StudentArchitecture

pytest.importorskip("transformers")

SMALL = dict(
    d_model=32, encoder_hidden_dim=32, encoder_ffn_dim=32, decoder_ffn_dim=32, decoder_layers=2, num_queries=20,
    encoder_attention_heads=2, decoder_attention_heads=2, num_denoising=10, hidden_expansion=0.5,
)  # fmt: skip
RESNET = StudentArchitecture("resnet18")
VIT = StudentArchitecture("vit_tiny_patch16_224", {"depth": 1}, img_size=64)


def target(boxes=(), labels=()):
    return {"boxes": torch.tensor(boxes).reshape(-1, 4).float(), "class_labels": torch.tensor(labels).long()}


TARGETS = [target([[0.3, 0.3, 0.2, 0.4], [0.7, 0.5, 0.3, 0.3]], [0, 2]), target()]


@pytest.fixture(scope="module")
def images():
    return torch.randint(0, 256, (2, 3, 64, 96), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("kind", ["rtdetr", "rtdetr_v2"])
@pytest.mark.parametrize("student", [RESNET, VIT], ids=lambda a: a.type)
def test_a_detector_learns_from_boxes_and_from_empty_images(kind, student, images):
    torch.manual_seed(0)
    detector = Detector(DetectorArchitecture(student, 3, kind, SMALL)).train()
    output = detector(images, TARGETS)
    assert set(output.loss_dict) >= {"loss_vfl", "loss_bbox", "loss_giou", "loss_bbox_dn_0", "loss_vfl_aux_0"}
    output.loss.backward()
    without = [n for n, p in detector.named_parameters() if p.grad is None]
    assert all("denoising" in n or ".fc." in n for n in without), without
    stem = next(detector.student.backbone.parameters())
    assert stem.grad.abs().max() > 0
    detector.zero_grad()
    empty = detector(images, [target(), target()])  # nothing to match: only wrong detections cost
    assert empty.loss.isfinite() and empty.loss_dict["loss_bbox"] == 0
    empty.loss.backward()


def test_maps_halve_and_a_size_that_cannot_is_refused(images, radio_student):
    for detector, strides in (
        (detector_on(Student(RESNET), 3, **SMALL), (8, 16, 32)),
        (detector_on(Student(VIT), 3, **SMALL), (8, 16, 32)),
        (detector_on(radio_student(), 3, **SMALL), (4, 8, 16)),  # with heads, which stay behind
        (detector_on(Student(StudentArchitecture("convnext_atto")), 3, **SMALL), (8, 16, 32)),
    ):
        assert detector.pyramid.strides == strides
        maps = detector.eval().maps(images)
        assert [tuple(m.shape[2:]) for m in maps] == [(64 // s, 96 // s) for s in strides]
        assert tuple(m.shape[1] for m in maps) == detector.pyramid.channels
        with pytest.raises(SpecError, match=f"Multiples of {strides[-1]}"):
            detector(images[..., :90])


def test_more_queries_than_positions_is_refused(images):
    detector = Detector(DetectorArchitecture(RESNET, 3, "rtdetr", SMALL | {"num_queries": 22})).eval()
    with pytest.raises(SpecError, match="22 queries are more than the 21 positions"):
        detector(images[..., :32, :32])


def test_the_backbone_is_the_students(images, radio_student):
    student = radio_student()
    detector = detector_on(student, 3, **SMALL).eval()
    with torch.no_grad():
        maps, spatial = detector.maps(images), student(images).spatial
    assert torch.equal(maps[1].permute(0, 2, 3, 1), spatial)


def test_what_is_found():
    logits = torch.full((1, 2, 3), -9.0)
    logits[0, 1, 2], logits[0, 0, 0] = 2.0, 1.0
    found = best_boxes(logits, torch.tensor([[[0.5, 0.5, 1, 1], [0.25, 0.5, 0.5, 0.2]]]), (100, 200), most=2)[0]
    assert found.labels.tolist() == [2, 0]
    torch.testing.assert_close(found.xyxy, torch.tensor([[0.0, 40, 100, 60], [0, 0, 200, 100]]))
    torch.testing.assert_close(found.scores, torch.tensor([2.0, 1.0]).sigmoid())
    assert len(best_boxes(logits, torch.zeros(1, 2, 4), (9, 9))[0].labels) == 6


@pytest.mark.parametrize("kind", ["rtdetr", "rtdetr_v2"])
def test_the_file_gives_the_same_detector(kind, tmp_path, images, radio_student):
    torch.manual_seed(3)
    detector = detector_on(radio_student(), 3, kind, **SMALL).eval()
    save_detector(detector, tmp_path / "d")
    again = load_detector(tmp_path / "d")
    assert again.architecture == detector.architecture and not again.training
    for a, b in zip(detector.detect(images, 5), again.detect(images, 5), strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    file = tmp_path / "d" / DETECTOR_FILE
    (tmp_path / "torn.safetensors").write_bytes(file.read_bytes()[:-9])
    save_file(load_file(file), tmp_path / "silent.safetensors")
    broken = load_file(file)
    broken["detr.model.enc_score_head.bias"][0] = float("nan")
    save_file(broken, tmp_path / "broken.safetensors", {"radioplat.detector": detector.architecture.to_json()})
    save_file(broken, tmp_path / "odd.safetensors", {"radioplat.detector": "{}"})
    bad = (
        ("torn", "whole"),
        ("silent", "which architecture"),
        ("gone", "gone"),
        ("broken", "NaN"),
        ("odd", "cannot read"),
    )
    for name, says in bad:
        with pytest.raises(WeightsError, match=says):
            load_detector(tmp_path / f"{name}.safetensors")


@pytest.mark.parametrize(
    "change, says",
    [
        ({"kind": "yolo"}, "yolo"),
        ({"options": {"num_querys": 3}}, "num_querys"),
        ({"options": {"num_labels": 3}}, "num_labels"),
        ({"options": SMALL | {"encoder_attention_heads": 5}}, "encoder_attention_heads"),
        ({"options": SMALL | {"num_queries": "many"}}, "num_queries"),
        ({"num_classes": 0}, "num_classes"),
        ({"student": StudentArchitecture("resnet18", num_classes=5)}, "classifier"),
    ],
)
def test_what_cannot_be_built_is_named(change, says):
    plain = {"student": RESNET, "num_classes": 3, "options": SMALL}
    with pytest.raises(SpecError, match=says):
        Detector(DetectorArchitecture(**(plain | change)))
