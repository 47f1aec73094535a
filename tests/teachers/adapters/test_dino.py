"""DINOv3 and EUPE in Meta's layout: the same features as transformers' DINOv3 gives with the same weights."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from radioplat.errors import WeightsError
from radioplat.teachers.adapters.registry import kind_of
from radioplat.teachers.base.teacher import FrozenTeacher, describe

transformers = pytest.importorskip("transformers")

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
# transformers' names -> those in Meta's .pth of a ViT, in this order. Of a gated MLP: w3(silu(w1 x) * w2 x).
VIT = [
    (r"embeddings\.register_tokens", "storage_tokens"),
    (r"embeddings\.patch_embeddings", "patch_embed.proj"),
    (r"embeddings\.", ""),
    (r"model\.layer\.", "blocks."),
    (r"attention\.o_proj", "attn.proj"),
    (r"layer_scale(\d)\.lambda1", r"ls\1.gamma"),
    (r"mlp\.gate_proj", "mlp.w1"),
]
PLAIN_MLP = [(r"mlp\.up_proj", "mlp.fc1"), (r"mlp\.down_proj", "mlp.fc2")]
GATED_MLP = [(r"mlp\.up_proj", "mlp.w2"), (r"mlp\.down_proj", "mlp.w3")]
CONVNEXT = [
    (r"model\.stages\.(\d)\.downsample_layers", r"downsample_layers.\1"),
    (r"model\.stages\.(\d)\.layers", r"stages.\1"),
    (r"depthwise_conv", "dwconv"),
    (r"pointwise_conv", "pwconv"),
    (r"(stages.*)layer_norm", r"\1norm"),
    (r"^layer_norm", "norm"),
]


def renamed(model: nn.Module, pairs: list[tuple[str, str]]) -> dict[str, torch.Tensor]:
    state = {}
    for key, value in model.state_dict().items():
        for pattern, replacement in pairs:
            key = re.sub(pattern, replacement, key)
        state[key] = value.clone()
    return state


def randomised(model: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    return model.eval()


def vit(gated: bool, biased: bool) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """A small DINOv3 of transformers, and its tensors in Meta's layout."""
    config = transformers.DINOv3ViTConfig(
        **dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128),
        num_register_tokens=4,
        **dict(use_gated_mlp=gated, hidden_act="silu" if gated else "gelu", query_bias=biased, value_bias=biased),
    )
    model = randomised(transformers.DINOv3ViTModel(config))
    state = renamed(model, [*VIT, *(GATED_MLP if gated else PLAIN_MLP)])
    state["mask_token"] = state["mask_token"][0]
    state["rope_embed.periods"] = torch.ones(4)
    for i in range(2):
        for kind in ("weight", *(["bias"] if biased else [])):
            parts = [state.pop(f"blocks.{i}.attention.{part}_proj.{kind}", torch.zeros(32)) for part in "qkv"]
            state[f"blocks.{i}.attn.qkv.{kind}"] = torch.cat(parts)
        if biased:
            state[f"blocks.{i}.attn.qkv.bias_mask"] = torch.tensor([1.0, 0.0, 1.0]).repeat_interleave(32)
    return model, state


def images() -> torch.Tensor:
    return torch.randn(2, 3, 64, 96, generator=torch.Generator().manual_seed(2))


def outputs(model: nn.Module, prefix: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    with torch.no_grad():
        out = model(images())
    return out.pooler_output, out.last_hidden_state[:, prefix:].unflatten(1, (-1, columns))


SMALL = dict(embed_dim=32, depth=2, num_heads=2)


@pytest.mark.parametrize("size", "tsb")
def test_eupes_vit(size, write, teacher, exactly):
    model, state = vit(gated=False, biased=True)
    state["projectors.teacher.weight"] = torch.ones(3)  # a head of its training
    info = exactly(teacher(f"eupe_vit{size}16", write(state, "eupe.pth"), SMALL), images(), *outputs(model, 5, 6))
    assert (info.adapter, info.stride, info.native.summary) == ("dino", 16, "class token")
    assert (info.native.mean, info.native.std) == IMAGENET


@pytest.mark.parametrize("name", ["eupe_convnext_tiny", "dinov3_convnext_tiny", "convnext_tiny.dinov3_lvd1689m"])
def test_metas_convnext_normalises_its_map(name, write, teacher, exactly):
    config = transformers.DINOv3ConvNextConfig(hidden_sizes=[8, 8, 16, 32], depths=[1] * 4)
    model = randomised(transformers.DINOv3ConvNextModel(config))
    state = renamed(model, CONVNEXT)
    state["norms.3.weight"], state["norms.3.bias"] = state["norm.weight"], state["norm.bias"]
    small = dict(dims=(8, 8, 16, 32), depths=(1, 1, 1, 1))
    info = exactly(teacher(name, write(state, "convnext.pth"), small), images(), *outputs(model, 1, 3))
    assert (info.adapter, info.stride, info.native.summary) == ("dino", 32, "mean of the map")
    assert (info.native.mean, info.native.std) == IMAGENET


def test_dinov3_7b(write, teacher, exactly):
    """Its gated MLP and its missing biases, in a small model; the large one as a structure alone."""
    model, state = vit(gated=True, biased=False)
    for part in ("weight", "bias"):
        state[f"local_cls_norm.{part}"] = torch.ones(32)  # of local crops, in training only
    small = dict(SMALL, mlp_ratio=4)
    exactly(teacher("dinov3_vit7b16", write(state, "7b.pth"), small), images(), *outputs(model, 5, 6))
    info = describe(teacher("vit_7b_patch16_dinov3", "nowhere.pth", size=256))
    assert (info.adapter, info.summary_dim, info.grid, info.native.summary) == ("dino", 4096, (16, 16), "class token")
    assert 6.7e9 < info.parameters < 6.8e9


def test_biases_that_timms_model_lacks_are_not_dropped(write, teacher, exactly):
    model, state = vit(gated=False, biased=True)
    path = write(state, "biased.pth")
    with pytest.raises(WeightsError, match="blocks.0.attn.qkv.bias") as caught:
        FrozenTeacher(teacher("dinov3_vitb16", path, SMALL))
    assert "vit_base_patch16_dinov3_qkvb" in caught.value.problems[0].hint
    exactly(teacher("vit_base_patch16_dinov3_qkvb", path, SMALL), images(), *outputs(model, 5, 6))


@pytest.mark.parametrize("type", ["eupe_vits16", "convnext_small.eupe_lvd1689m", "vit_7b_patch16_dinov3.sat493m"])
def test_names(type, teacher):
    assert kind_of(teacher(type, "nowhere.pth")) == "dino"
