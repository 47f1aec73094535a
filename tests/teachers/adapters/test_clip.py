"""SigLIP 2's giant tower and Meta's Perception Encoder: names, layouts and summaries."""

from __future__ import annotations

import pytest
import timm
import torch
from torch import nn

from radioplat.teachers.base.teacher import describe

SMALL = dict(embed_dim=32, depth=2, num_heads=2, img_size=64)
# timm's names -> Meta's, of the tower and of its attention pool.
META = [
    *(("patch_embed.proj", "conv1"), ("norm_pre", "ln_pre"), ("blocks.", "transformer.resblocks.")),
    *(("norm1", "ln_1"), ("norm2", "ln_2"), ("attn.qkv.", "attn.in_proj_"), ("attn.proj", "attn.out_proj")),
    *(("mlp.fc1", "mlp.c_fc"), ("mlp.fc2", "mlp.c_proj"), ("gamma_1", "ls_1.gamma"), ("gamma_2", "ls_2.gamma")),
    *(("cls_token", "class_embedding"), ("pos_embed", "positional_embedding")),
]
POOL = [("proj.", "attn.out_proj."), ("mlp.fc1", "mlp.c_fc"), ("mlp.fc2", "mlp.c_proj"), ("norm.", "layernorm.")]
POOL += [("latent", "probe")]


def made(name: str, **arguments) -> nn.Module:
    torch.manual_seed(0)
    model = timm.create_model(name, dynamic_img_size=True, **SMALL, **arguments).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    return model


def in_metas_layout(model: nn.Module) -> dict[str, torch.Tensor]:
    state, pool = {}, {}
    for key, value in model.state_dict().items():
        if key.startswith("attn_pool."):
            pool[key.removeprefix("attn_pool.")] = value
            continue
        for ours, theirs in META:
            key = key.replace(ours, theirs)
        state[key.replace("norm.", "ln_post.") if key.startswith("norm.") else key] = value
    if "head.weight" in state:  # Meta's projection has no bias
        state["proj"] = state.pop("head.weight").T
        del state["head.bias"]
    state["class_embedding"] = state["class_embedding"].flatten()
    state["positional_embedding"] = state["positional_embedding"][0]
    for key, value in pool.items():
        for ours, theirs in POOL:
            key = key.replace(ours, theirs)
        state[f"attn_pool.{key}"] = value
    if pool:
        for kind in ("weight", "bias"):
            q, kv = (state.pop(f"attn_pool.{part}.{kind}") for part in ("q", "kv"))
            state[f"attn_pool.attn.in_proj_{kind}"] = torch.cat([q, kv])
    return {f"visual.{key}": value for key, value in state.items()}


def images(height: int = 64, width: int = 64) -> torch.Tensor:
    return torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("name", ["PE-Core-T16-384", "PE-Core-T-16-384", "vit_pe_core_tiny_patch16_384.fb"])
def test_pe_core_is_summed_up_by_its_embedding(name, write, teacher, exactly):
    model = made("vit_pe_core_tiny_patch16_384", num_classes=24)
    nn.init.zeros_(model.head.bias)
    with torch.no_grad():
        raw = model.forward_features(images())
        embedding = model.forward_head(raw)
    spatial = raw[:, 1:].reshape(2, 4, 4, 32)
    path = write({**in_metas_layout(model), "text_projection": torch.ones(3)}, "pe.pt")
    kwargs = dict(SMALL, num_classes=24)
    info = exactly(teacher(name, path, kwargs), images(), embedding, spatial)
    assert (info.adapter, info.native.summary, info.native.mean) == ("clip", "projected embedding", (0.5, 0.5, 0.5))
    with torch.no_grad():
        pooled = model.attn_pool(raw)
    exactly(teacher(name, path, {**kwargs, "summary": "attention"}), images(), pooled, spatial)


@pytest.mark.parametrize(
    ("name", "timms"),
    [
        ("PE-Spatial-B16-512", "vit_pe_spatial_base_patch16_512"),
        ("vit_pe_lang_large_patch14_448", "vit_pe_lang_large_patch14_448"),
    ],
)
def test_pe_without_a_pool_is_summed_up_by_the_mean(name, timms, write, teacher, exactly):
    model = made(timms, num_classes=0, patch_size=16)
    with torch.no_grad():
        spatial = model.forward_features(images(64, 96))[:, 1:].reshape(2, 4, 6, 32)
    path = write(in_metas_layout(model), "pe.pt")
    kwargs = dict(SMALL, patch_size=16)
    info = exactly(teacher(name, path, kwargs), images(64, 96), spatial.mean((1, 2)), spatial)
    assert (info.adapter, info.native.summary, info.native.std) == ("clip", "mean of the map", (0.5, 0.5, 0.5))


@pytest.mark.parametrize(
    ("name", "summary"),
    [
        ("ViT-gopt-16-SigLIP2-384", "attention pool"),
        ("vit_giantopt_patch16_siglip_384.v2_webli", "attention pool"),
        ("vit_giantopt_patch16_siglip_gap_384", "mean of the map"),
    ],
)
def test_siglip2_g(name, summary, write, teacher, exactly):
    model = made("vit_giantopt_patch16_siglip_" + ("gap_384" if "gap" in name else "384"), num_classes=0)
    with torch.no_grad():
        raw = model.forward_features(images(64, 96))
        pooled = model.forward_head(raw)
    path = write({f"visual.trunk.{key}": value for key, value in model.state_dict().items()})
    info = exactly(teacher(name, path, SMALL), images(64, 96), pooled, raw.reshape(2, 4, 6, 32))
    assert (info.native.summary, info.native.mean, info.native.std) == (summary, (0.5,) * 3, (0.5,) * 3)
    large = describe(teacher(name, "nowhere.safetensors", size=384))
    assert (large.adapter, large.summary_dim, large.grid, large.native.size) == ("clip", 1536, (24, 24), 384)


@pytest.mark.parametrize("size", ["B16-224", "L14-336", "G14-448", "bigG-14-448", "S-16-384"])
def test_each_pe_core_has_a_name(size, teacher):
    side = int(size.rpartition("-")[2])
    info = describe(teacher(f"PE-Core-{size}", "nowhere.pt", size=side))
    assert info.native.size == side and info.native.summary == "projected embedding"
