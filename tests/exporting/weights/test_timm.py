"""Backbones under timm's names, opened by timm alone."""

from __future__ import annotations

import timm
import torch

from radioplat.exporting.weights.timm import timm_file
from radioplat.models.heads import HeadArchitecture


def created(found) -> torch.nn.Module:
    """As a user of timm does it: every name must fit."""
    model = timm.create_model(found.name, **found.kwargs)
    model.load_state_dict(found.tensors)
    return model.eval()


def normalised(student, pixels):
    return (pixels - student.mean) / student.std


HEADS = (HeadArchitecture("a", 4, 4, hidden=8),)


def test_timm_students_are_written_as_they_are(radio_student, image_batch):
    for name, kwargs, classes in (
        ("test_resnet", {}, 0),
        ("test_efficientnet", {}, 5),
        ("test_vit", {"depth": 2, "img_size": 48}, 3),
    ):
        student = radio_student(type=name, kwargs=kwargs, heads=HEADS, num_classes=classes)
        found = timm_file(student, 48, 48)
        assert found.name == name and found.mean == (0.4, 0.5, 0.6) and any("heads of a" in n for n in found.notes)
        model, pixels = created(found), normalised(student, image_batch())
        with torch.no_grad():
            torch.testing.assert_close(model.forward_features(pixels), student.backbone.model.forward_features(pixels))
            assert model(pixels).shape[1] == (classes or model.num_features)


def test_a_radio_vit_is_timms_vit_with_the_other_tokens_as_registers(radio_student, image_batch):
    for size, adaptors, slot in (((48, 48), [], 0), ((48, 48), ["dino"], 2), ((24, 64), ["sam"], 1)):
        student = radio_student()
        found = timm_file(student, *size, adaptors)
        assert found.kwargs["reg_tokens"] == 3 - 1 + 5 and found.token == slot
        pixels = normalised(student, image_batch(*size))
        with torch.no_grad():
            own, said = student.backbone(pixels), created(found).forward_features(pixels)
        torch.testing.assert_close(said[:, 0], own.named["tokens"][:, slot], rtol=0, atol=1e-4)
        torch.testing.assert_close(said[:, 8:], own.spatial.flatten(1, 2), rtol=0, atol=1e-4)
        assert any(f"positions are for {size[0]} x {size[1]}" in note for note in found.notes)


def test_layer_scale_no_norm_and_no_registers(radio_student, image_batch):
    kwargs = {"embed_dim": 32, "depth": 1, "num_heads": 2, "init_values": 1e-2, "final_norm": False, "qk_norm": True}
    student = radio_student(kwargs=kwargs, num_class_tokens=1, num_registers=0, heads=())
    found = timm_file(student, 48, 48)
    assert "reg_tokens" not in found.kwargs
    pixels = normalised(student, image_batch())
    with torch.no_grad():
        own, said = student.backbone(pixels), created(found).forward_features(pixels)
    torch.testing.assert_close(said[:, 1:], own.spatial.flatten(1, 2), rtol=0, atol=1e-4)
