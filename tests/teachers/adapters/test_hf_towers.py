"""Image towers of larger models in Hugging Face folders: SAM 3, SigLIP 2, DINOv3, Perception Encoder."""

from __future__ import annotations

import json
from copy import deepcopy

import pytest
import torch
from torch import nn

transformers = pytest.importorskip("transformers")

SMALL = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)
VIT = dict(SMALL, image_size=64, patch_size=16)
LAYER = dict(hidden_size=16, num_layers=1, num_attention_heads=2, intermediate_size=16)
TEXT = dict(SMALL, vocab_size=99, bos_token_id=0, eos_token_id=0)


def images(height: int, width: int) -> torch.Tensor:
    return torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(2))


def saved(model: nn.Module, folder) -> nn.Module:
    """The model with other weights than the constructor's (norms of ones hide mistakes), also written to ``folder``."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2, generator=generator)
    model.eval().save_pretrained(folder)
    return model


def sam3_vision():
    vit = dict(VIT, model_type="sam3_vit_model", image_size=56, patch_size=14, pretrain_image_size=28)
    vit |= dict(num_hidden_layers=3, window_size=2, global_attn_indexes=[1])
    return transformers.Sam3VisionConfig(backbone_config=vit, fpn_hidden_size=16)


def sam3(model_type: str) -> nn.Module:
    vision = sam3_vision()
    if model_type == "sam3_vision_model":
        return transformers.Sam3VisionModel(vision)
    if model_type == "sam3_vit_model":
        return transformers.AutoModel.from_config(vision.backbone_config)
    detector = transformers.Sam3Config(
        vision_config=vision.to_dict(),
        text_config=dict(TEXT, projection_dim=16),
        geometry_encoder_config=LAYER,
        detr_encoder_config=LAYER,
        detr_decoder_config=dict(LAYER, num_queries=4),
        mask_decoder_config=dict(hidden_size=16, num_attention_heads=2),
    )
    if model_type == "sam3":
        return transformers.Sam3Model(detector)
    tracker = dict(vision_config=vision.to_dict(), mask_decoder_config=dict(hidden_size=16))
    return transformers.Sam3VideoModel(
        transformers.Sam3VideoConfig(detector_config=detector.to_dict(), tracker_config=tracker)
    )


def sam3_vit(model: nn.Module) -> nn.Module:
    """The ViT before the neck."""
    model = getattr(model, "detector_model", model)
    model = getattr(model, "vision_encoder", model)
    return getattr(model, "backbone", model)


@pytest.mark.parametrize("model_type", ["sam3", "sam3_video", "sam3_vision_model", "sam3_vit_model"])
def test_sam3s_vit_before_its_neck(model_type, tmp_path, teacher, exactly):
    vit = sam3_vit(saved(sam3(model_type), tmp_path))
    processor = {"image_processor": {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}, "processor_class": "x"}
    (tmp_path / "processor_config.json").write_text(json.dumps(processor))
    x = images(56, 56)
    with torch.no_grad():
        tokens = vit(x).last_hidden_state
    info = exactly(teacher("sam3_default", str(tmp_path), size=56), x, tokens.mean(1), tokens.reshape(2, 4, 4, 32))
    assert (info.adapter, info.stride, info.native.size) == ("hf", 14, 56)
    assert (info.native.mean, info.native.std) == ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


def test_sam3_at_another_size_has_the_positions_of_that_size(tmp_path, teacher, exactly, same_as, normalised):
    """transformers computes them once, for the size in the configuration."""
    vit = saved(sam3("sam3_vit_model"), tmp_path)
    config = deepcopy(vit.config)
    config.image_size = 84
    larger = type(vit)(config).eval()
    larger.load_state_dict(vit.state_dict())
    x = images(84, 84)
    with torch.no_grad():
        tokens = larger(x).last_hidden_state
    exactly(teacher(None, str(tmp_path), size=56), x, tokens.mean(1), tokens.reshape(2, 6, 6, 32))
    with torch.no_grad():
        tokens = larger(normalised(84)).last_hidden_state
    info = same_as(teacher(None, str(tmp_path), size=84), tokens.mean(1), tokens.reshape(2, 6, 6, 32))
    assert info.grid == (6, 6)


@pytest.mark.parametrize("whole", [True, False])
def test_siglip2_giant_of_a_fixed_resolution(whole, tmp_path, teacher, exactly):
    """google/siglip2-giant-opt-patch16-384 has the model type siglip."""
    vision = transformers.SiglipVisionConfig(**VIT, hidden_act="gelu_pytorch_tanh")
    both = transformers.SiglipConfig(vision_config=vision.to_dict(), text_config=dict(TEXT, projection_size=32))
    model = saved(transformers.SiglipModel(both) if whole else transformers.SiglipVisionModel(vision), tmp_path)
    x = images(64, 96)
    with torch.no_grad():
        tower = model.vision_model if whole else model
        out = tower(x, interpolate_pos_encoding=True)
    spatial = out.last_hidden_state.reshape(2, 4, 6, 32)
    assert exactly(teacher("siglip2_g_384", str(tmp_path)), x, out.pooler_output, spatial).adapter == "hf"


@pytest.mark.parametrize("whole", [True, False])
def test_siglip2_of_any_resolution(whole, tmp_path, teacher, exactly):
    vision = transformers.Siglip2VisionConfig(**SMALL, patch_size=16, num_patches=16)
    both = transformers.Siglip2Config(vision_config=vision.to_dict(), text_config=dict(TEXT, projection_size=32))
    model = saved(transformers.Siglip2Model(both) if whole else transformers.Siglip2VisionModel(vision), tmp_path)
    x = images(64, 96)
    patches = x.unfold(2, 16, 16).unfold(3, 16, 16).permute(0, 2, 3, 4, 5, 1).reshape(2, 24, -1)
    with torch.no_grad():
        tower = model.vision_model if whole else model
        out = tower(patches, torch.ones(2, 24, dtype=torch.long), torch.tensor([[4, 6]] * 2))
    spatial = out.last_hidden_state.reshape(2, 4, 6, 32)
    exactly(teacher("siglip2_so400m", str(tmp_path)), x, out.pooler_output, spatial)


def test_dinov3_as_its_7b_is_built(tmp_path, teacher, exactly):
    """Gated MLPs, no biases of queries, keys and values, four registers."""
    gated = dict(use_gated_mlp=True, hidden_act="silu", query_bias=False, value_bias=False, num_register_tokens=4)
    model = saved(transformers.DINOv3ViTModel(transformers.DINOv3ViTConfig(**VIT, **gated)), tmp_path)
    x = images(64, 96)
    with torch.no_grad():
        out = model(x)
    exactly(teacher(None, str(tmp_path)), x, out.pooler_output, out.last_hidden_state[:, 5:].reshape(2, 4, 6, 32))


def test_dinov3s_convnext_has_a_token_before_its_map(tmp_path, teacher, exactly):
    config = transformers.DINOv3ConvNextConfig(hidden_sizes=[8, 8, 16, 32], depths=[1] * 4)
    model = saved(transformers.DINOv3ConvNextModel(config), tmp_path)
    x = images(64, 96)
    with torch.no_grad():
        out = model(x)
    spatial = out.last_hidden_state[:, 1:].reshape(2, 2, 3, 32)
    assert exactly(teacher(None, str(tmp_path)), x, out.pooler_output, spatial).stride == 32


def test_perception_encoder_alone_and_in_a_language_model(tmp_path, teacher, exactly):
    small = dict(embed_dim=32, depth=2, num_heads=2, img_size=56)
    vision = transformers.TimmWrapperConfig(architecture="vit_pe_lang_large_patch14_448", model_args=small)
    text = dict(SMALL, model_type="llama", vocab_size=99, num_key_value_heads=2)
    config = transformers.PerceptionLMConfig(vision_config=vision, text_config=text)
    x = images(56, 56)
    for model in (transformers.TimmWrapperModel(vision), transformers.PerceptionLMForConditionalGeneration(config)):
        folder = tmp_path / type(model).__name__
        own = saved(model, folder)
        own = own.model.vision_tower if hasattr(own, "model") else own
        with torch.no_grad():
            tokens = own.timm_model.forward_features(x)[:, 1:]
        exactly(teacher(None, str(folder), size=56), x, tokens.mean(1), tokens.reshape(2, 4, 4, 32))
