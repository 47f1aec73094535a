"""RADIO ViTs by NVlabs' names against plain timm: LayerScale, norms in the MLPs or at the end, a 128 x 128 table of
positions."""

from __future__ import annotations

import argparse

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from timm.models.vision_transformer import VisionTransformer

from radioplat.errors import WeightsError
from radioplat.models.backbones.radio_vit import RadioViT
from radioplat.models.pretrained.initial_weights import start_notes, start_student
from radioplat.models.student.student import StudentArchitecture, build_backbone
from radioplat.models.weights.radio_layout import read_radio, split_radio
from radioplat.spec.loading.load import load_spec
from radioplat.spec.resolved.teacher import resolve_teachers
from radioplat.teachers.adapters.radio import RadioTeacher
from radioplat.teachers.base.teacher import check_weights, describe

SMALL = {"embed_dim": 32, "depth": 2, "num_heads": 4}
D = SMALL["embed_dim"]
V3, V4 = "c_radio_v3_vit_base_patch16_reg4_dinov2", "c_radio_v4_vit_huge_patch16"
P3 = "c_radio_p3_vit_huge_patch16_mlpnorm"


def released(scaled: bool, tokens: int, seed: int = 0, mlp_norm: bool = False) -> dict[str, torch.Tensor]:
    """Tensors of such a model by the names of NVlabs' ViT: what is in a file, and nothing else."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return 0.2 * torch.randn(shape, generator=generator)

    front = {"embedder.weight": draw(D, 768), "pos_embed": draw(1, 128 * 128, D), "cls_token.token": draw(tokens, D)}
    found = {f"patch_generator.{k}": v for k, v in front.items()}
    for i in range(2):
        block = {
            **{f"norm{n}.{k}": draw(D) + (k == "weight") for n in (1, 2) for k in ("weight", "bias")},
            **{"attn.qkv.weight": draw(3 * D, D), "attn.qkv.bias": draw(3 * D)},
            **{"attn.proj.weight": draw(D, D), "attn.proj.bias": draw(D)},
            **{"mlp.fc1.weight": draw(4 * D, D), "mlp.fc1.bias": draw(4 * D)},
            **{"mlp.fc2.weight": draw(D, 4 * D), "mlp.fc2.bias": draw(D)},
            **({"ls1.gamma": 1 + draw(D), "ls2.gamma": 1 + draw(D)} if scaled else {}),
            **({"mlp.norm.weight": 1 + draw(4 * D), "mlp.norm.bias": draw(4 * D)} if mlp_norm else {}),
        }
        found |= {f"blocks.{i}.{k}": v for k, v in block.items()}
    return found


def by_timm(tensors: dict[str, torch.Tensor], images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens before the patches ``[B, T, D]`` and the map, by timm's plain ViT with registers."""
    h, w = (side // 16 for side in images.shape[-2:])
    front = {k.removeprefix("patch_generator."): v for k, v in tensors.items() if k.startswith("patch_generator.")}
    token = front["cls_token.token"]
    scaled = {"init_values": 1e-5} if "blocks.0.ls1.gamma" in tensors else {}
    scaled |= {"scale_mlp_norm": True} if "blocks.0.mlp.norm.weight" in tensors else {}
    model = VisionTransformer(
        img_size=(16 * h, 16 * w),
        patch_size=16,
        num_classes=0,
        reg_tokens=len(token) - 1,
        no_embed_class=True,
        final_norm=False,
        **SMALL,
        **scaled,
    ).eval()
    for block in model.blocks if "scale_mlp_norm" in scaled else ():
        block.mlp.norm.eps = 1e-5  # that of nn.LayerNorm, unlike the other norms'
    table = front["pos_embed"].reshape(1, 128, 128, D).permute(0, 3, 1, 2)
    table = F.interpolate(table, size=(max(h, w), max(h, w)), mode="bilinear", align_corners=False)[:, :, :h, :w]
    own = {k: v for k, v in tensors.items() if k.startswith("blocks.")}
    own |= {"cls_token": token[None, :1], "reg_token": token[None, 1:], "pos_embed": table.flatten(2).transpose(1, 2)}
    own |= {"patch_embed.proj.weight": front["embedder.weight"].reshape(D, 3, 16, 16)}
    model.load_state_dict(own | {"patch_embed.proj.bias": torch.zeros(D)})
    with torch.no_grad():
        found = model.forward_features(images)
    return found[:, : len(token)], found[:, len(token) :].reshape(len(images), h, w, D)


@pytest.mark.parametrize("size", [(224, 224), (96, 160)])
@pytest.mark.parametrize(
    ("name", "scaled", "classes", "tokens"), [(V3, True, 4, 8), (V4, False, 3, 10), (P3, False, 4, 16)]
)
def test_a_students_backbone(name, scaled, classes, tokens, size):
    tensors = released(scaled, tokens, mlp_norm=name == P3)
    backbone = build_backbone(StudentArchitecture(name, SMALL, num_class_tokens=classes)).eval()
    assert isinstance(backbone, RadioViT)
    backbone.load_state_dict(tensors)
    images = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(1))
    front, spatial = by_timm(tensors, images)
    with torch.no_grad():
        found = backbone(images)
    torch.testing.assert_close(found.named["tokens"], front[:, :classes], rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(found.spatial, spatial, rtol=1e-5, atol=1e-4)


def resolved(name: str, path: str | None):
    backbone = {"type": name, "kwargs": SMALL}
    entry = {"mode": "combo", "loss_type": "MSE", "model": {"backbone": backbone}, "input_size": 96}
    entry |= {"pretrained_teacher_model_path": path} if path else {}
    return resolve_teachers(load_spec({"distill": {"teacher": [entry]}}))[0]


@pytest.mark.parametrize(
    ("name", "scaled", "tokens", "slots"), [(V3, True, 8, 3), (V4, False, 10, 2), (P3, False, 16, 3)]
)
def test_a_teacher_by_name(name, scaled, tokens, slots, tmp_path):
    """A file of a backbone alone, which says nothing of its teachers; one of TAO's is under a prefix."""
    tensors, path = released(scaled, tokens, mlp_norm=name == P3), tmp_path / "backbone.safetensors"
    save_file({f"model.radio.radio.model.{k}": v for k, v in tensors.items()}, path)
    teacher = resolved(name, str(path))
    assert describe(teacher).summary_dim == slots * D == describe(resolved(name, None)).summary_dim
    check_weights(teacher)
    model = RadioTeacher.build(teacher).eval()
    model.load(teacher)
    images = torch.randn(2, 3, 96, 96, generator=torch.Generator().manual_seed(1))
    front, spatial = by_timm(tensors, images)
    with torch.no_grad():
        found = model(images)
    torch.testing.assert_close(found.summary, front[:, :slots].flatten(1), rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(found.spatial, spatial, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("name", "scaled", "classes", "tokens"), [(V3, True, 4, 8), (P3, False, 4, 16)])
def test_a_student_starts_from_taos(name, scaled, classes, tokens, tmp_path):
    """TAO's student is under a prefix, beside its classifier."""
    tensors, path = released(scaled, tokens, mlp_norm=name == P3), tmp_path / "tao.pth"
    state = {f"model.radio.radio.model.{k}": v for k, v in tensors.items()}
    torch.save({"state_dict": state | {"model.head.weight": torch.ones(3, D)}}, path)
    architecture = StudentArchitecture(name, SMALL, num_class_tokens=classes)
    spec = load_spec(None, [f"train.pretrained_model_path={path}"])
    own = start_student(spec, architecture).backbone.state_dict()
    assert set(own) == set(tensors) and all(torch.equal(own[k], v) for k, v in tensors.items())
    assert any("model.radio.radio.model." in note for note in start_notes(spec, architecture))


def test_the_first_c_radio_of_nvlabs(tmp_path):
    """Its file says that it has three teachers, and by its tensors that its MLPs have norms."""
    tensors, path = released(False, 16, mlp_norm=True), tmp_path / "c_radio.pth"
    args = argparse.Namespace(
        model="vit_huge_patch16_224_mlpnorm",
        cls_token_per_teacher=True,
        teachers=[{"name": name, "use_summary": True} for name in ("clip", "siglip", "dino_v2")],
    )
    torch.save({"state_dict": {f"base_model.{k}": v for k, v in tensors.items()}, "args": args}, path)
    parts = split_radio(read_radio(path), str(path), num_heads=4)
    backbone = RadioViT(**parts.vit).eval()
    backbone.load_state_dict(parts.backbone)
    images = torch.randn(2, 3, 96, 160, generator=torch.Generator().manual_seed(1))
    front, spatial = by_timm(tensors, images)
    with torch.no_grad():
        found = backbone(images)
    torch.testing.assert_close(found.named["tokens"], front[:, :3], rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(found.spatial, spatial, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: {k: v for k, v in t.items() if ".ls" not in k}, "ls1.gamma"),
        (lambda t: t | {"norm.weight": torch.ones(D), "norm.bias": torch.zeros(D)}, "norm.weight"),
        (lambda t: t | {"patch_generator.pos_embed": torch.zeros(1, 14 * 14, D)}, "pos_embed"),
    ],
    ids=["no LayerScale", "a norm at the end", "another table"],
)
def test_weights_of_another_architecture_are_refused(change, words, tmp_path):
    path = tmp_path / "backbone.safetensors"
    save_file(change(released(True, 8)), path)
    with pytest.raises(WeightsError, match=words):
        check_weights(resolved(V3, str(path)))
