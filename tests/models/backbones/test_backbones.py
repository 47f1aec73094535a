"""RADIO ViT and timm models behind one face."""

from __future__ import annotations

import pytest
import timm
import torch

from radioplat.errors import SpecError
from radioplat.models.backbones.patch_generator import PatchGenerator
from radioplat.models.backbones.radio_vit import RadioViT
from radioplat.models.backbones.timm_backbone import TimmBackbone
from radioplat.models.heads import HeadArchitecture
from radioplat.models.probe import probe
from radioplat.models.student.student import Student, StudentArchitecture

BOTH = frozenset({"summary", "spatial"})
TINY = dict(patch_size=8, embed_dim=16, depth=2, num_heads=2)


class TestRadioViT:
    def test_shapes(self):
        vit = RadioViT(num_class_tokens=3, cpe_max_size=32, num_registers=2, **TINY).eval()
        features = vit(torch.rand(2, 3, 16, 32))
        assert features.spatial.shape == (2, 2, 4, 16) and features.summary.shape == (2, 48)
        assert torch.equal(features.named["tokens"].flatten(1), features.summary)
        assert (vit.summary_dim, vit.token_dim, vit.spatial_dim, vit.stride) == (48, 16, 16, 8)
        assert vit(torch.rand(1, 3, 16, 16), frozenset({"summary"})).spatial is None

    @pytest.mark.parametrize(
        ("tokens", "registers", "multiple", "expected"),
        [
            (2, None, None, 6),
            (8, None, None, 0),
            (9, None, None, 7),
            (2, None, 4, 2),
            (3, None, 16, 13),
            (2, 0, None, 0),
            (2, 5, 4, 5),
        ],
    )
    def test_registers(self, tokens, registers, multiple, expected):
        vit = RadioViT(
            num_class_tokens=tokens, cpe_max_size=16, num_registers=registers, register_multiple=multiple, **TINY
        )
        assert vit.patch_generator.num_registers == expected

    def test_the_map_follows_the_image(self):
        """Positions are row-major: moving the input's rows moves the map's rows (no attention, no positions)."""
        vit = RadioViT(num_class_tokens=1, cpe_max_size=16, num_registers=0, **{**TINY, "depth": 0}).eval()
        with torch.no_grad():
            vit.patch_generator.pos_embed.zero_()
        images = torch.rand(1, 3, 24, 16)
        swapped = torch.cat([images[:, :, 16:], images[:, :, :16]], dim=2)
        torch.testing.assert_close(vit(swapped).spatial, vit(images).spatial.roll(1, dims=1))

    def test_crops_by_sides_are_those_of_the_formula(self):
        """Sides scale * ratio and scale / ratio, from corner to corner; the table holds its own x and y."""
        side, count = 16, 400
        positions = PatchGenerator(1, 2, side, 1, 0).train()
        positions.crop_sides = True
        axis = torch.linspace(0, 1, side)
        with torch.no_grad():
            positions.pos_embed.copy_(torch.stack(torch.meshgrid(axis, axis, indexing="xy"), -1).reshape(1, -1, 2))
        found = positions.positions(count, 5, 7).reshape(count, 5, 7, 2)
        wide, tall = (found[:, -1, -1] - found[:, 0, 0]).unbind(-1)
        inside = (wide < 0.99) & (tall < 0.99)
        ratio = (wide / tall)[inside]
        assert inside.sum() > 100 and 9 / 16 - 1e-3 < ratio.min() < 0.62 and 1.6 < ratio.max() < 16 / 9 + 1e-3
        assert 0.1**0.5 - 1e-3 < (wide * tall).sqrt()[inside].min() < 0.4
        steps = found[:, 0, 1:, 0] - found[:, 0, :-1, 0]
        torch.testing.assert_close(steps, (wide / 6)[:, None].expand_as(steps), atol=1e-5, rtol=1e-4)
        assert found.min() >= 0 and found.max() <= 1
        whole = positions.positions(1, side, side)
        torch.testing.assert_close(whole, positions.pos_embed)  # the table's own size is not cropped

    def test_positions_are_dropped_for_whole_images(self):
        positions = PatchGenerator(8, 4, 16, 1, 0)
        positions.position_dropout, positions.crops_positions = 0.5, False
        with torch.no_grad():
            positions.embedder.weight.zero_()
        black = torch.zeros(200, 3, 16, 16)
        torch.manual_seed(0)
        tokens = positions.train()(black)[:, 1:]
        dropped = (tokens == 0).flatten(1).all(1)
        assert 70 < dropped.sum() < 130 and not (positions.eval()(black)[:, 1:] == 0).all((1, 2)).any()
        torch.testing.assert_close(tokens[~dropped], positions.pos_embed.expand(int((~dropped).sum()), -1, -1))

    def test_checkpointed_blocks_give_the_same_gradient(self):
        vit = RadioViT(num_class_tokens=1, cpe_max_size=16, **TINY).train()
        images, gradients = torch.rand(2, 3, 16, 16), []
        for enable in (False, True):
            vit.set_grad_checkpointing(enable)
            vit.zero_grad()
            torch.manual_seed(0)
            vit(images).spatial.square().sum().backward()
            gradients.append(torch.cat([p.grad.flatten() for p in vit.parameters()]))
        torch.testing.assert_close(*gradients)

    @pytest.mark.parametrize(
        ("change", "where"),
        [
            ({"num_heads": 5}, "model.backbone.kwargs"),
            ({"widht": 3}, "model.backbone.kwargs"),
            ({"class_token": True}, "model.backbone.kwargs"),
            ({"cpe_max_size": 4}, "model.backbone.cpe_max_size"),
        ],
    )
    def test_refused(self, change, where):
        with pytest.raises(SpecError) as caught:
            RadioViT(**{"num_class_tokens": 1, "cpe_max_size": 16, **TINY, **change})
        assert caught.value.problems[0].where == where


@pytest.mark.parametrize(
    "name",
    [
        "test_resnet",
        "test_efficientnet",
        "test_convnext",
        "test_vit",
        "test_vit2",
        "hiera_tiny_224",
        "efficientvit_b0",
        "deit_tiny_distilled_patch16_224",
        "samvit_base_patch16",
        "mobilenetv3_small_050",
    ],
)
def test_what_a_timm_backbone_says_is_what_it_gives(name):
    with torch.device("meta"):
        backbone = TimmBackbone(name, 10, input_size=224)
    features = probe(backbone, 224, BOTH | {"logits"}, "x")
    assert features.summary.shape == (1, backbone.summary_dim) and features.named["logits"].shape == (1, 10)
    side = 224 // backbone.stride
    assert features.spatial.shape == (1, side, side, backbone.spatial_dim)


@pytest.mark.parametrize("name", ["test_resnet", "test_efficientnet", "test_convnext", "test_vit"])
def test_same_numbers_as_timm(name):
    torch.manual_seed(0)
    backbone = TimmBackbone(name, 5).eval()
    images = torch.rand(2, 3, 96, 64)
    with torch.no_grad():
        features = backbone(images, BOTH | {"logits"})
        torch.testing.assert_close(features.named["logits"], backbone.model(images))
        if name == "test_vit":
            raw = backbone.model.forward_features(images)[:, backbone.model.num_prefix_tokens :]
            torch.testing.assert_close(features.spatial.flatten(1, 2), raw)
        else:
            torch.testing.assert_close(features.spatial.permute(0, 3, 1, 2), backbone.model.forward_features(images))
    assert set(backbone(images, frozenset({"logits"})).named) == {"logits"}
    assert backbone(images, frozenset({"spatial"})).summary is None


def test_a_hierarchical_model_gives_its_map_channels_last():
    backbone = TimmBackbone(
        "swin_tiny_patch4_window7_224", input_size=64, embed_dim=16, depths=(1, 1, 1, 1), num_heads=(1, 1, 2, 2)
    )
    features = backbone.eval()(torch.rand(2, 3, 64, 64))
    assert features.spatial.shape == (2, 2, 2, 128) and features.summary.shape == (2, 128)
    torch.testing.assert_close(features.summary, features.spatial.mean((1, 2)))  # its summary is the pooled map


def test_a_model_built_for_one_size_is_built_for_ours():
    with torch.device("meta"):
        assert probe(TimmBackbone("swinv2_tiny_window8_256", input_size=64), 64, BOTH, "x").spatial.shape == (
            1,
            2,
            2,
            768,
        )


def test_classifier_names_are_whole_modules():
    backbone = TimmBackbone("test_convnext", 3)
    classifier = {n for n, _ in backbone.model.named_parameters() if n.startswith(backbone.classifier_prefix)}
    assert classifier == {"head.fc.weight", "head.fc.bias"}


@pytest.mark.parametrize(("name", "size"), [("volo_d1_224", 64), ("levit_128s", 224), ("efficientformer_l1", 64)])
def test_a_size_or_form_that_cannot_be_is_said(name, size):
    with torch.device("meta"):
        backbone = TimmBackbone(name)
    if name == "levit_128s":  # rounds up: 224 / 64
        assert probe(backbone, size, BOTH, "x").spatial.shape[1:3] == (4, 4)
        return
    with pytest.raises(SpecError, match=f"{size} x {size}") as caught:
        probe(backbone, size, BOTH, "distill.teacher[0].input_size")
    assert caught.value.problems[0].where == "distill.teacher[0].input_size"


def test_timm_refuses_arguments():
    with pytest.raises(SpecError, match="test_vit") as caught:
        TimmBackbone("test_vit", where="distill.teacher[0].model.backbone", widht=3)
    assert caught.value.problems[0].where == "distill.teacher[0].model.backbone.kwargs"


def test_no_gradient_checkpointing_is_said():
    assert timm.is_model("inception_v3")
    with torch.device("meta"):
        backbone = TimmBackbone("inception_v3")
    with pytest.raises(SpecError, match="grad_checkpointing"):
        backbone.set_grad_checkpointing()


FAMILIES = {  # any timm family can be a student: name, kwargs that make it small
    "vit": ("test_vit", {}),
    "deit": ("deit_tiny_distilled_patch16_224", dict(embed_dim=32, depth=2, num_heads=2)),
    "eva": ("eva02_tiny_patch14_224", dict(embed_dim=32, depth=2, num_heads=2)),
    "resnet": ("test_resnet", {}),
    "convnext": ("test_convnext", {}),
    "efficientnet": ("test_efficientnet", {}),
    "efficientvit": ("efficientvit_b0", dict(widths=(8, 8, 16, 16, 32), head_dim=8)),
    "pvt": ("pvt_v2_b0", dict(embed_dims=(8, 16, 24, 32), num_heads=(1, 1, 2, 2))),
}


@pytest.mark.parametrize(("name", "kwargs"), FAMILIES.values(), ids=FAMILIES)
def test_a_student_of_any_family_learns_from_images_that_are_not_square(name, kwargs):
    stride = TimmBackbone(name, **kwargs).stride
    height, width = (64, 96) if 64 % stride == 0 else (5 * stride, 7 * stride)
    heads = (HeadArchitecture("a", 4, 5, hidden=8),)
    student = Student(StudentArchitecture(name, kwargs, img_size=224, heads=heads)).train()
    found = student.head("a", student(torch.rand(2, 3, height, width)))
    assert found.summary.shape == (2, 4) and found.spatial.shape == (2, height // stride, width // stride, 5)
    (found.summary.square().sum() + found.spatial.square().sum()).backward()
    without = [n for n, p in student.backbone.named_parameters() if p.requires_grad and p.grad is None]
    assert not [n for n in without if not n.startswith("model.norm")], without


@pytest.mark.parametrize(
    ("name", "kwargs"),
    [
        ("swin_tiny_patch4_window7_224", dict(embed_dim=16, depths=(1, 1, 1, 1), num_heads=(1, 1, 2, 2))),
        ("hiera_tiny_224", dict(embed_dim=16, stages=(1, 1, 1, 1), num_heads=1)),
    ],
)
def test_a_hierarchical_student_of_one_size_learns(name, kwargs):
    heads = (HeadArchitecture("a", 4, 5),)
    student = Student(StudentArchitecture(name, kwargs, img_size=224, heads=heads)).train()
    found = student.head("a", student(torch.rand(2, 3, 224, 224)))
    assert found.summary.shape == (2, 4) and found.spatial.shape == (2, 7, 7, 5)
    (found.summary.square().sum() + found.spatial.square().sum()).backward()
    assert all(p.grad is not None for p in student.backbone.model.parameters() if p.requires_grad)


def test_positions_of_an_image_that_is_not_square():
    """The map of a wide image holds, in its top left square, what the square image's map holds (no attention)."""
    vit = RadioViT(num_class_tokens=1, cpe_max_size=64, num_registers=0, **{**TINY, "depth": 0}).eval()
    wide = torch.rand(1, 3, 32, 48)
    tall = wide.transpose(-1, -2)
    assert vit(wide).spatial.shape == (1, 4, 6, 16) and vit(tall).spatial.shape == (1, 6, 4, 16)
    square = torch.cat([wide, torch.zeros(1, 3, 16, 48)], dim=2)  # 48 x 48: the same longest side, so the same table
    torch.testing.assert_close(vit(square).spatial[:, :4], vit(wide).spatial)
