"""Hugging Face folders: the same features as ``transformers`` gives."""

from __future__ import annotations

import json

import pytest
import torch

from radioplat.errors import SpecError, WeightsError
from radioplat.teachers.base.teacher import FrozenTeacher, describe

transformers = pytest.importorskip("transformers")

SMALL = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, image_size=64, patch_size=16)
MODELS = {
    "vit": ("ViTModel", "ViTConfig", dict(SMALL, intermediate_size=64), 1),
    "dinov2": ("Dinov2Model", "Dinov2Config", SMALL, 1),
    "dinov3": ("DINOv3ViTModel", "DINOv3ViTConfig", dict(SMALL, intermediate_size=64, num_register_tokens=4), 5),
    "clip": (
        "CLIPVisionModelWithProjection",
        "CLIPVisionConfig",
        dict(SMALL, intermediate_size=64, projection_dim=24),
        1,
    ),
    "siglip": ("SiglipVisionModel", "SiglipVisionConfig", dict(SMALL, intermediate_size=64), 0),
}


def save(name, tmp_path):
    torch.manual_seed(0)
    model_class, config_class, arguments, prefix = MODELS[name]
    model = getattr(transformers, model_class)(getattr(transformers, config_class)(**arguments)).eval()
    model.save_pretrained(tmp_path)
    norm = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(norm))
    return model, prefix


@pytest.mark.parametrize("name", MODELS)
def test_vits(name, tmp_path, teacher, same_as, normalised):
    model, prefix = save(name, tmp_path)
    with torch.no_grad():
        out = model(pixel_values=normalised())
    summary = getattr(out, "image_embeds", None)
    info = same_as(
        teacher(None, str(tmp_path)),
        out.pooler_output if summary is None else summary,
        out.last_hidden_state[:, prefix:].reshape(2, 4, 4, 32),
    )
    assert (info.adapter, info.stride, info.native.size) == ("hf", 16, 64)
    assert (info.native.mean, info.native.std) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))


def test_another_size_and_type_by_name(tmp_path, teacher):
    save("siglip", tmp_path)
    info = describe(teacher("hf", str(tmp_path), size=96))
    assert info.grid == (6, 6)
    with pytest.raises(SpecError, match="multiple of the patch"):
        describe(teacher("hf", str(tmp_path), size=100))
    with pytest.raises(SpecError, match="takes no arguments: layr") as caught:
        describe(teacher("hf", str(tmp_path), {"layr": 1}))
    assert caught.value.problems[0].where == "distill.teacher[0].model.backbone.kwargs"


def test_siglip2_takes_patches(tmp_path, teacher, same_as, normalised):
    torch.manual_seed(0)
    arguments = {k: v for k, v in SMALL.items() if k != "image_size"}
    config = transformers.Siglip2VisionConfig(**arguments, intermediate_size=64, num_patches=16)
    model = transformers.Siglip2VisionModel(config).eval()
    model.save_pretrained(tmp_path)
    patches = normalised().unfold(2, 16, 16).unfold(3, 16, 16).permute(0, 2, 3, 4, 5, 1).reshape(2, 16, -1)
    with torch.no_grad():
        out = model(patches, torch.ones(2, 16, dtype=torch.long), torch.tensor([[4, 4]] * 2))
    same_as(teacher("hf", str(tmp_path)), out.pooler_output, out.last_hidden_state.reshape(2, 4, 4, 32))


def test_convnext_and_a_whole_clip(tmp_path, teacher, same_as, normalised):
    torch.manual_seed(0)
    model = transformers.ConvNextModel(transformers.ConvNextConfig(hidden_sizes=[8, 8, 16, 32], depths=[1] * 4)).eval()
    model.save_pretrained(tmp_path / "convnext")
    with torch.no_grad():
        out = model(normalised())
    info = same_as(
        teacher("hf", str(tmp_path / "convnext")), out.pooler_output, out.last_hidden_state.permute(0, 2, 3, 1)
    )
    assert info.stride == 32
    vision = dict(SMALL, intermediate_size=64)
    text = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, vocab_size=99)
    both = transformers.CLIPModel(
        transformers.CLIPConfig(vision_config=vision, text_config=text, projection_dim=24)
    ).eval()
    both.save_pretrained(tmp_path / "clip")
    with torch.no_grad():
        out = both.vision_model(normalised())
        summary = both.visual_projection(out.pooler_output)
    info = same_as(teacher("hf", str(tmp_path / "clip")), summary, out.last_hidden_state[:, 1:].reshape(2, 4, 4, 32))
    assert info.native.summary == "projected embedding" and info.native.mean is None


def test_an_untrained_pooler_is_not_used(tmp_path, teacher, pixels, normalised):
    torch.manual_seed(0)
    config = transformers.ViTConfig(**SMALL, intermediate_size=64)
    model = transformers.ViTModel(config, add_pooling_layer=False).eval()
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        own = model(normalised()).last_hidden_state[:, 0]
    found = FrozenTeacher(teacher("hf", str(tmp_path)))(pixels(), frozenset({"summary"}))
    torch.testing.assert_close(found.summary.float(), own, rtol=1e-2, atol=1e-2)


class TestRefused:
    def test_code_in_the_folder(self, tmp_path, teacher):
        config = {"model_type": "mine", "auto_map": {"AutoModel": "modeling_mine.Mine"}}
        (tmp_path / "config.json").write_text(json.dumps(config))
        (tmp_path / "modeling_mine.py").write_text("raise SystemExit('ran')")
        with pytest.raises(SpecError, match="no model of type 'mine'") as caught:
            describe(teacher("hf", str(tmp_path)))
        assert "never run" in caught.value.problems[0].hint

    def test_a_folder_of_timms(self, tmp_path, teacher):
        config = {"architecture": "vit_pe_core_base_patch16_224", "pretrained_cfg": {}}
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(SpecError) as caught:
            describe(teacher(None, str(tmp_path)))
        assert "vit_pe_core_base_patch16_224" in caught.value.problems[0].hint

    def test_no_folder_no_weights_torn(self, tmp_path, teacher):
        with pytest.raises(WeightsError, match="config.json"):
            describe(teacher("hf", str(tmp_path / "no")))
        save("vit", tmp_path)
        file = tmp_path / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-99])
        with pytest.raises(WeightsError, match="cannot be loaded"):
            FrozenTeacher(teacher("hf", str(tmp_path)))
        file.unlink()
        with pytest.raises(WeightsError, match="no .safetensors"):
            FrozenTeacher(teacher("hf", str(tmp_path)))

    def test_a_language_model(self, tmp_path, teacher):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", "num_hidden_layers": 1}))
        with pytest.raises(SpecError, match="takes no images"):
            describe(teacher("hf", str(tmp_path)))
