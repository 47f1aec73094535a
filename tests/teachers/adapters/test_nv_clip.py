"""NV-CLIP's image towers: what OpenCLIP computes from its tensors, computed here with torch's own attention."""

from __future__ import annotations

import math

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from torch import nn

from radioplat.errors import WeightsError
from radioplat.models.backbones.names import resolve
from radioplat.models.student.student import StudentArchitecture, build_backbone
from radioplat.teachers.base.teacher import check_weights, describe, spec_mismatches

D, HEADS, DEPTH, OUT, EPS = 32, 2, 2, 24, 1e-5
BACKBONE = {"embed_dim": D, "num_heads": HEADS, "depth": DEPTH}
SMALL = BACKBONE | {"num_classes": OUT}
HALF = [0.5, 0.5, 0.5]


@pytest.fixture
def tower() -> dict[str, torch.Tensor]:
    """A small image tower by OpenCLIP's names: no ln_pre, and no bias in its first layer or its projection."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return 0.2 * torch.randn(shape, generator=generator)

    tensors = {
        "class_embedding": draw(D),
        "positional_embedding": draw(257, D),
        "conv1.weight": draw(D, 3, 14, 14),
        "ln_post.weight": 1 + draw(D),
        "ln_post.bias": draw(D),
        "proj": draw(D, OUT),
    }
    for i in range(DEPTH):
        block = {
            "ln_1.weight": 1 + draw(D),
            "ln_1.bias": draw(D),
            "attn.in_proj_weight": draw(3 * D, D),
            "attn.in_proj_bias": draw(3 * D),
            "attn.out_proj.weight": draw(D, D),
            "attn.out_proj.bias": draw(D),
            "ln_2.weight": 1 + draw(D),
            "ln_2.bias": draw(D),
            "mlp.c_fc.weight": draw(4 * D, D),
            "mlp.c_fc.bias": draw(4 * D),
            "mlp.c_proj.weight": draw(D, 4 * D),
            "mlp.c_proj.bias": draw(D),
        }
        tensors |= {f"transformer.resblocks.{i}.{k}": v for k, v in block.items()}
    return {f"visual.{k}": v for k, v in tensors.items()}


def computed(tower: dict[str, torch.Tensor], images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The embedding and the map, by OpenCLIP's order of things."""
    t = {k.removeprefix("visual."): v for k, v in tower.items()}
    x = F.conv2d(images, t["conv1.weight"], stride=14).flatten(2).transpose(1, 2)
    x = torch.cat([t["class_embedding"].expand(len(x), 1, -1), x], dim=1) + t["positional_embedding"]
    for i in range(DEPTH):
        b = {k.removeprefix(f"transformer.resblocks.{i}."): v for k, v in t.items()}
        attention = nn.MultiheadAttention(D, HEADS, batch_first=True)
        attention.load_state_dict({k.removeprefix("attn."): v for k, v in b.items() if k.startswith("attn.")})
        y = F.layer_norm(x, (D,), b["ln_1.weight"], b["ln_1.bias"], EPS)
        x = x + attention(y, y, y, need_weights=False)[0]
        y = F.layer_norm(x, (D,), b["ln_2.weight"], b["ln_2.bias"], EPS)
        hidden = F.gelu(F.linear(y, b["mlp.c_fc.weight"], b["mlp.c_fc.bias"]))
        x = x + F.linear(hidden, b["mlp.c_proj.weight"], b["mlp.c_proj.bias"])
    patches = x[:, 1:]
    pooled = F.layer_norm(patches.mean(1), (D,), t["ln_post.weight"], t["ln_post.bias"], EPS)
    return (pooled @ t["proj"]).detach(), patches.reshape(len(x), 16, 16, D).detach()


@pytest.mark.parametrize("prefix", ["", "model."], ids=["OpenCLIP", "TAO"])
@pytest.mark.parametrize("name", ["vit_l_14_siglip_clipa_224", "vit_h_14_siglip_clipa_224"])
def test_the_embedding_and_the_map(name, prefix, tower, write, teacher, same_as, normalised):
    text = {"text.token_embedding.weight": torch.ones(3, 3), "logit_scale": torch.ones(())}
    path = write({f"{prefix}{k}": v for k, v in (tower | text).items()})
    found = teacher(name, path, SMALL, size=224)
    info = same_as(found, *computed(tower, normalised(224)))
    assert (info.adapter, info.stride, info.summary_dim) == ("clip", 14, OUT)


def test_it_wants_images_around_zero(tower, write, teacher):
    """Mean and std of 0.5: nothing is said of a teacher that is given them, and something of one that is not."""
    path = write(tower)
    for mean, flagged in ((HALF, False), ([0.485, 0.456, 0.406], True)):
        found = teacher("vit_h_14_siglip_clipa_224", path, SMALL, 224, norm_mean=mean, norm_std=HALF)
        assert bool(spec_mismatches(found, describe(found))) is flagged


def test_openais_clip_is_refused(tower, write, teacher):
    before = {"visual.ln_pre.weight": torch.ones(D), "visual.ln_pre.bias": torch.zeros(D)}
    path = write(tower | before)
    with pytest.raises(WeightsError, match="norm_pre"):
        check_weights(teacher("vit_h_14_siglip_clipa_224", path, SMALL, size=224))


@pytest.mark.parametrize(
    ("name", "width", "depth", "side", "out"),
    [
        ("vit_l_14_siglip_clipa_224", 1024, 24, 16, 768),
        ("vit_l_14_siglip_clipa_336", 1024, 24, 24, 768),
        ("vit_h_14_siglip_clipa_224", 1280, 32, 16, 1024),
    ],
)
def test_sizes(name, width, depth, side, out):
    assert resolve(name).name == name
    with torch.device("meta"):
        model = timm.create_model(name)
    assert (model.embed_dim, len(model.blocks), model.blocks[0].attn.num_heads) == (width, depth, 16)
    assert model.patch_embed.grid_size == (side, side) and model.head.weight.shape == (out, width)


def test_positions_of_a_student_are_fixed_sines_and_cosines():
    """The table of MAE and OpenCLIP: half the width for the column, half for the row, sines before cosines."""
    backbone = build_backbone(StudentArchitecture("vit_l_14_siglip_clipa_224", BACKBONE))
    table = backbone.model.pos_embed
    assert not table.requires_grad and not table[0, 0].any()
    rates = [1 / 10000 ** (k / (D // 4)) for k in range(D // 4)]
    for row, column in ((0, 0), (0, 3), (5, 0), (7, 11)):
        expected = [f(place * r) for place in (column, row) for f in (math.sin, math.cos) for r in rates]
        np.testing.assert_allclose(table[0, 1 + 16 * row + column].numpy(), expected, atol=1e-6)
    found = backbone(torch.randn(1, 3, 224, 252))
    assert found.spatial.shape == (1, 16, 18, D) and found.summary.shape == (1, D)
