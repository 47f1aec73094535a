"""timm, DINO, CLIP and SAM: the summary that was asked for, and foreign layouts by their own names."""

from __future__ import annotations

import pytest
import timm
import torch

from radioplat.errors import SpecError, WeightsError
from radioplat.quickstart.weights import MEAN, STD, teacher_weights
from radioplat.teachers.adapters.registry import kind_of
from radioplat.teachers.base.teacher import FrozenTeacher, describe

WIDTH = dict(embed_dim=32, depth=2, num_heads=2)


def make(name: str, **arguments):
    torch.manual_seed(0)
    return timm.create_model(name, **arguments).eval()


def features(model, images):
    with torch.no_grad():
        raw = model.forward_features(images)
    side = int((raw.shape[1] - model.num_prefix_tokens) ** 0.5)
    return raw, raw[:, model.num_prefix_tokens :].reshape(2, side, side, -1)


@pytest.mark.parametrize("summary", ["class", "mean"])
def test_a_vit_summed_up_as_asked(summary, write, teacher, same_as, normalised):
    model = make("vit_tiny_patch16_224", num_classes=0, dynamic_img_size=True, **WIDTH)
    raw, spatial = features(model, normalised())
    wanted = raw[:, 0] if summary == "class" else spatial.mean((1, 2))
    path = write(model.state_dict())
    info = same_as(teacher("vit_tiny_patch16_224", path, {**WIDTH, "summary": summary}), wanted, spatial)
    assert info.adapter == "timm" and info.native.size == 224
    with pytest.raises(SpecError, match="no attention pool"):
        describe(teacher("vit_tiny_patch16_224", path, {**WIDTH, "summary": "attention"}))
    with pytest.raises(SpecError, match="'best' is not one of native") as caught:
        describe(teacher("vit_tiny_patch16_224", path, {**WIDTH, "summary": "best"}))
    assert caught.value.problems[0].where.endswith("model.backbone.kwargs.summary")


def test_a_cnn_has_no_class_token(write, teacher, same_as, normalised):
    model = make("test_resnet", num_classes=0)
    with torch.no_grad():
        raw = model.forward_features(normalised())
    path = write(model.state_dict())
    same_as(teacher("test_resnet", path, {"summary": "mean"}), raw.mean((2, 3)), raw.permute(0, 2, 3, 1))
    with pytest.raises(SpecError, match="no class token"):
        describe(teacher("test_resnet", path, {"summary": "class"}))


def test_meta_dinov2(write, teacher, same_as, normalised):
    """Meta's names: register_tokens, a mask_token, positions that count the class token."""
    small = {**WIDTH, "img_size": 56}
    model = make("vit_small_patch14_reg4_dinov2", num_classes=0, dynamic_img_size=True, **small)
    raw, spatial = features(model, normalised(56))
    state = dict(model.state_dict())
    state["register_tokens"] = state.pop("reg_token")
    state["mask_token"] = torch.zeros(1, 32)
    state["pos_embed"] = torch.cat([torch.zeros(1, 1, 32), state["pos_embed"]], 1)
    state["cls_token"] = state["cls_token"].clone()
    path = write(state, "dinov2.pth")
    info = same_as(teacher("dinov2_vits14_reg", path, small, size=56), raw[:, 0], spatial)
    assert (info.adapter, info.stride, info.native.summary) == ("dino", 14, "class token")
    assert info.native.mean == (0.485, 0.456, 0.406)


def test_meta_dinov3(write, teacher, same_as, normalised):
    model = make("vit_small_patch16_dinov3", num_classes=0, dynamic_img_size=True, **WIDTH)
    raw, spatial = features(model, normalised())
    renamed = {"gamma_1": "ls1.gamma", "gamma_2": "ls2.gamma", "reg_token": "storage_tokens"}
    state = {}
    for key, value in model.state_dict().items():
        for ours, theirs in renamed.items():
            key = key.replace(ours, theirs)
        state[key] = value
    state["mask_token"] = torch.zeros(1, 32)
    state["rope_embed.periods"] = torch.ones(8)
    info = same_as(teacher("dinov3_vits16", write(state, "dinov3.pth"), WIDTH), raw[:, 0], spatial)
    assert info.adapter == "dino"


def test_openai_clip_and_its_projection(write, teacher, same_as, normalised):
    small = {**WIDTH, "img_size": 64}
    model = make("vit_base_patch16_clip_224", num_classes=24, dynamic_img_size=True, **small)
    torch.nn.init.zeros_(model.head.bias)  # OpenAI's projection has none
    raw, spatial = features(model, normalised())
    with torch.no_grad():
        embedding = model.forward_head(raw)
    state = {"visual." + _clip_name(k): v for k, v in model.state_dict().items() if k != "head.bias"}
    state["visual.proj"] = state.pop("visual.head.weight").T
    state["visual.class_embedding"] = state["visual.class_embedding"].flatten()
    state["visual.positional_embedding"] = state["visual.positional_embedding"][0]
    state["token_embedding.weight"] = torch.zeros(9, 9)
    path = write(state)
    info = same_as(teacher("ViT-B-16", path, {**small, "num_classes": 24}), embedding, spatial)
    assert (info.adapter, info.summary_dim, info.native.summary) == ("clip", 24, "projected embedding")
    tagged = describe(teacher("vit_base_patch16_clip_224.openai", path, {**small, "num_classes": 24}))
    assert (info.native.text_tower, tagged.native.text_tower) == ("", "ViT-B-16-quickgelu:openai")
    class_token = {**small, "summary": "class"}
    same_as(teacher("ViT-B-16", path, class_token), raw[:, 0], spatial)
    assert describe(teacher("vit_base_patch16_clip_224.openai", path, class_token)).native.text_tower == ""
    cut = write({k: v for k, v in state.items() if k != "visual.proj"}, "cut.pth")
    with pytest.raises(WeightsError, match="lacks the projection") as caught:
        FrozenTeacher(teacher("ViT-B-16", cut, {**small, "num_classes": 24}), "cpu")
    assert caught.value.problems[0].where.endswith("kwargs.summary")


def _clip_name(name: str) -> str:
    pairs = [("patch_embed.proj", "conv1"), ("norm_pre", "ln_pre"), ("blocks.", "transformer.resblocks.")]
    pairs += [("norm1", "ln_1"), ("norm2", "ln_2"), ("attn.qkv.", "attn.in_proj_"), ("attn.proj", "attn.out_proj")]
    pairs += [("mlp.fc1", "mlp.c_fc"), ("mlp.fc2", "mlp.c_proj"), ("cls_token", "class_embedding")]
    pairs += [("pos_embed", "positional_embedding")]
    for ours, theirs in pairs:
        name = name.replace(ours, theirs)
    return name.replace("norm.", "ln_post.") if name.startswith("norm.") else name


def test_siglip_is_summed_up_by_its_attention(write, teacher, same_as, normalised):
    small = {**WIDTH, "img_size": 64}
    model = make("vit_base_patch16_siglip_224", num_classes=0, dynamic_img_size=True, **small)
    raw, spatial = features(model, normalised())
    with torch.no_grad():
        pooled = model.forward_head(raw)
    state = {f"visual.trunk.{k}": v for k, v in model.state_dict().items()} | {"text.x": torch.ones(1)}
    info = same_as(teacher("ViT-B-16-SigLIP2", write(state), small), pooled, spatial)
    assert (info.adapter, info.native.summary, info.native.mean) == ("clip", "attention pool", (0.5, 0.5, 0.5))
    assert info.native.text_tower == "ViT-B-16-SigLIP2:webli"


@pytest.mark.parametrize("neck", [True, False])
@pytest.mark.parametrize("size", [64, 96])
def test_meta_sam(neck, size, write, teacher, same_as, normalised):
    small = {**WIDTH, "img_size": 64, "global_attn_indexes": (1,), "neck_chans": 8}
    model = make("samvit_base_patch16", num_classes=0, **small)
    model.patch_embed.strict_img_size = False
    path = write({**{f"image_encoder.{k.replace('mlp.fc', 'mlp.lin')}": v for k, v in model.state_dict().items()}})
    if not neck:
        model.neck = torch.nn.Identity()
    with torch.no_grad():
        spatial = model.forward_features(normalised(size)).permute(0, 2, 3, 1)
    info = same_as(teacher("sam_vit_b", path, {**small, "neck": neck}, size=size), spatial.mean((1, 2)), spatial)
    assert (info.adapter, info.spatial_dim, info.native.size) == ("sam", 8 if neck else 32, 1024)
    with pytest.raises(SpecError, match="multiple of the patch"):
        describe(teacher("sam_vit_b", path, small, size=100))


def test_another_patch_is_another_architecture(write, teacher):
    model = make("vit_tiny_patch16_224", num_classes=0, **WIDTH)
    with pytest.raises(WeightsError, match="patch_embed.proj.weight"):
        FrozenTeacher(teacher("vit_small_patch14_dinov2", write(model.state_dict()), WIDTH, size=56))


@pytest.mark.parametrize("name", ["tf_efficientnet_lite0", "tf_efficientnet_lite2"])
def test_efficientnet_lite_on_its_real_weights(name, tmp_path, teacher, same_as, normalised):
    path = teacher_weights(name, tmp_path)
    model = timm.create_model(name).eval()
    from safetensors.torch import load_file

    model.load_state_dict(load_file(path))
    with torch.no_grad():
        raw = model.forward_features(normalised(96))
    info = same_as(teacher(name, str(path), size=96), raw.mean((2, 3)), raw.permute(0, 2, 3, 1))
    assert (info.adapter, info.stride, info.native.mean, info.native.std) == ("timm", 32, MEAN, STD)


@pytest.mark.parametrize(
    ("type", "kind"),
    [
        ("resnet50", "timm"),
        ("vit_base_patch16_224.augreg_in21k", "timm"),
        ("dinov2_vitl14", "dino"),
        ("vit_large_patch14_reg4_dinov2", "dino"),
        ("ViT-SO400M-14-SigLIP-384", "clip"),
        ("vit_h_14_siglip_clipa_224", "clip"),
        ("sam_vit_h", "sam"),
        ("c_radio_v3_vit_base_patch16_reg4_dinov2", "radio"),
        ("radio", "radio"),
        ("torchscript", "torchscript"),
        ("my_package.models:Mine", "class"),
    ],
)
def test_a_name_finds_its_adapter(type, kind, teacher):
    assert kind_of(teacher(type, "nowhere.pth")) == kind


def test_a_default_normalisation_that_depends_on_the_weights_is_not_guessed(teacher):
    assert describe(teacher("vit_base_patch16_224", "x", WIDTH)).native.mean is None
    assert describe(teacher("vit_base_patch16_224.augreg_in21k", "x", WIDTH)).native.mean == (0.5, 0.5, 0.5)
    assert describe(teacher("vit_base_patch16_224.dino", "x", WIDTH)).native.mean == (0.485, 0.456, 0.406)
