"""RADIO ViTs by NVlabs' names against plain timm: LayerScale, no norm at the end, a 128 x 128 table of positions."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from timm.models.vision_transformer import VisionTransformer

from radioplat.errors import WeightsError
from radioplat.models.backbones.radio_vit import RadioViT
from radioplat.models.student.student import StudentArchitecture, build_backbone
from radioplat.spec.loading.load import load_spec
from radioplat.spec.resolved.teacher import resolve_teachers
from radioplat.teachers.adapters.radio import RadioTeacher
from radioplat.teachers.base.teacher import check_weights, describe

SMALL = {"embed_dim": 32, "depth": 2, "num_heads": 4}
D = SMALL["embed_dim"]
V3, V4 = "c_radio_v3_vit_base_patch16_reg4_dinov2", "c_radio_v4_vit_huge_patch16"


def released(scaled: bool, tokens: int, seed: int = 0) -> dict[str, torch.Tensor]:
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
        }
        found |= {f"blocks.{i}.{k}": v for k, v in block.items()}
    return found


def by_timm(tensors: dict[str, torch.Tensor], images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens before the patches ``[B, T, D]`` and the map, by timm's plain ViT with registers."""
    h, w = (side // 16 for side in images.shape[-2:])
    front = {k.removeprefix("patch_generator."): v for k, v in tensors.items() if k.startswith("patch_generator.")}
    token = front["cls_token.token"]
    scaled = {"init_values": 1e-5} if "blocks.0.ls1.gamma" in tensors else {}
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
@pytest.mark.parametrize(("name", "scaled", "classes", "tokens"), [(V3, True, 4, 8), (V4, False, 3, 10)])
def test_a_students_backbone(name, scaled, classes, tokens, size):
    tensors = released(scaled, tokens)
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


@pytest.mark.parametrize(("name", "scaled", "tokens", "slots"), [(V3, True, 8, 3), (V4, False, 10, 2)])
def test_a_teacher_by_name(name, scaled, tokens, slots, tmp_path):
    """A file of a backbone alone, which says nothing of its teachers; one of TAO's is under a prefix."""
    tensors, path = released(scaled, tokens), tmp_path / "backbone.safetensors"
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
