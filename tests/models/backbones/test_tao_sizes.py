"""TAO's sizes of timm's architectures: as other implementations compute them, and as large as TAO builds them."""

from __future__ import annotations

import re

import pytest
import timm
import torch
from torch import nn

from radioplat.exporting.onnx.export import export_onnx
from radioplat.models.backbones.names import resolve
from radioplat.models.backbones.pyramid import Pyramid
from radioplat.models.backbones.timm_backbone import TimmBackbone
from radioplat.models.heads import HeadArchitecture
from radioplat.models.on_meta import on_meta
from radioplat.models.student.student import Student, StudentArchitecture, build_backbone
from radioplat.models.weights.read import fit
from radioplat.teachers.adapters.timm_model import renamed_by_timm

transformers = pytest.importorskip("transformers")

BOTH = frozenset({"summary", "spatial"})


def randomised(model: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.1)
    return model.eval()


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        *(("mit_b0", 3319392), ("mit_b1", 13151424), ("mit_b2", 24196288), ("mit_b3", 44072128)),
        *(("mit_b4", 60842688), ("mit_b5", 81443008)),
        *(("gc_vit_base_384", 89819196), ("gc_vit_large", 200538570), ("gc_vit_large_384", 201323610)),
        *(("vit_large_patch14_dinov2_swiglu", 304793856), ("vit_large_patch14_dinov2_swiglu_legacy", 303654144)),
        ("efficientvit_l0", 27805472),
    ],
)
def test_it_is_as_large_as_taos(name, parameters):
    """TAO 7.0.1's constructors, without a classifier. timm's EfficientViT has layers before the classifier, too."""
    with on_meta():
        model = timm.create_model(resolve(name).name, num_classes=0)
    own = [p for n, p in model.named_parameters() if not n.startswith("head.")]
    assert sum(p.numel() for p in own) == parameters


def test_the_first_c_radio_has_a_norm_in_each_mlp():
    """TAO 7.0.1's count of p1, p2 and p3 with two blocks: they differ in the number of class tokens, not of tokens."""
    for early, classes in (("p1", 3), ("p2", 4), ("p3", 4)):
        name = f"c_radio_{early}_vit_huge_patch16_mlpnorm"
        found = resolve(name)
        assert found.class_tokens == classes and len(found.summary_slots) == (4 if early == "p2" else 3)
        architecture = StudentArchitecture(name, {"depth": 2}, num_class_tokens=classes, cpe_max_size=2048)
        with on_meta():
            backbone = build_backbone(architecture)
        assert sum(p.numel() for p in backbone.parameters()) == 61350400


# transformers' names -> those of SegFormer's and TAO's files, in this order.
SEGFORMER = [
    (r"stages\.(\d)\.patch_embeddings", lambda m: f"patch_embed{int(m[1]) + 1}"),
    (r"stages\.(\d)\.blocks", lambda m: f"block{int(m[1]) + 1}"),
    (r"stages\.(\d)\.layer_norm", lambda m: f"norm{int(m[1]) + 1}"),
    (r"layernorm_before", "norm1"),
    (r"layernorm_after", "norm2"),
    (r"attention\.sequence_reduction\.sequence_reduction", "attn.sr"),
    (r"attention\.sequence_reduction\.layer_norm", "attn.norm"),
    (r"(patch_embed\d)\.layer_norm", r"\1.norm"),
    (r"attention\.o_proj", "attn.proj"),
    (r"attention\.q_proj", "attn.q"),
]


def test_mit_is_segformers_encoder():
    reference = randomised(transformers.SegformerModel(transformers.SegformerConfig()))  # its defaults are those of b0
    for name, module in reference.named_modules():  # TAO's, and the published code's
        if re.search(r"layernorm_|stages\.\d\.layer_norm$", name):
            module.eps = 1e-6
    state = {}
    for key, value in reference.state_dict().items():
        for pattern, replacement in SEGFORMER:
            key = re.sub(pattern, replacement, key)
        state[key] = value
    for key in [k for k in state if ".k_proj." in k]:
        value = state.pop(key.replace("k_proj", "v_proj"))
        state[key.replace("attention.k_proj", "attn.kv")] = torch.cat([state.pop(key), value])
    backbone = TimmBackbone(resolve("mit_b0").name).eval()
    model = backbone.model
    model.load_state_dict(fit(model, renamed_by_timm(model, state), "b0.pth", ""))
    images = torch.randn(2, 3, 64, 96)
    with torch.no_grad():
        stages = reference(images, output_hidden_states=True).hidden_states
        found, levels = backbone(images, BOTH), Pyramid(backbone)(backbone, images)
    torch.testing.assert_close(found.spatial, stages[-1].permute(0, 2, 3, 1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.summary, stages[-1].mean((2, 3)), rtol=1e-5, atol=1e-5)
    for level, stage in zip(levels, stages[-3:], strict=True):
        torch.testing.assert_close(level, stage, rtol=1e-5, atol=1e-4)


def test_a_mit_student_learns_and_is_exported(tmp_path):
    """The export compares its file with torch."""
    small = dict(depths=(1, 1, 1, 1), embed_dims=(8, 16, 16, 32), num_heads=(1, 1, 2, 2))
    head = HeadArchitecture("clip", summary_dim=12, spatial_dim=10, hidden=16, num_inner=0)
    student = Student(StudentArchitecture("mit_b5", small, img_size=64, heads=(head,)))
    images = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    output = student.head("clip", student(images))
    (output.summary.square().sum() + output.spatial.square().sum()).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in student.backbone.model.stages.parameters())
    report = export_onnx(student.eval(), tmp_path / "mit.onnx", height=64, width=64)
    assert report.outputs["spatial"] == ["batch", 2, 2, 32] and report.max_relative_error < 1e-4


def test_dinov2_large_with_swiglu():
    """Against transformers' DINOv2 with the same gated MLP, 2736 wide."""
    arguments = dict(hidden_size=1024, num_hidden_layers=1, num_attention_heads=16, image_size=56, patch_size=14)
    reference = randomised(transformers.Dinov2Model(transformers.Dinov2Config(**arguments, use_swiglu_ffn=True)))
    state, given = {}, reference.state_dict()
    for key, value in given.items():
        key = key.replace("embeddings.patch_embeddings.projection", "patch_embed.proj")
        key = re.sub(r".*\blayer\.(\d)\.", r"blocks.\1.", key)
        key = re.sub(r"layer_scale(\d)\.lambda1", r"ls\1.gamma", key).replace("layernorm.", "norm.")
        key = key.replace("mlp.down_proj", "mlp.fc2")
        key = key.replace("embeddings.cls_token", "cls_token").replace("embeddings.position_embeddings", "pos_embed")
        state[re.sub(r"attention\.(?:output\.dense|o_proj)", "attn.proj", key)] = value
    state.pop("embeddings.mask_token")
    for kind in ("weight", "bias"):
        parts = [next(k for k in state if re.search(rf"{part}\w*\.{kind}$", k)) for part in (r"\bq", r"\bk", r"\bv")]
        state[f"blocks.0.attn.qkv.{kind}"] = torch.cat([state.pop(k) for k in parts])
        gated = [state.pop(f"blocks.0.mlp.{part}_proj.{kind}") for part in ("gate", "up")]
        state[f"blocks.0.mlp.fc1.{kind}"] = torch.cat(gated)
    backbone = TimmBackbone(resolve("vit_large_patch14_dinov2_swiglu").name, depth=1, img_size=56).eval()
    backbone.model.load_state_dict(state)
    images = torch.randn(2, 3, 56, 56)
    with torch.no_grad():
        tokens, found = reference(images).last_hidden_state, backbone(images, BOTH)
    torch.testing.assert_close(found.summary, tokens[:, 0], rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(found.spatial.flatten(1, 2), tokens[:, 1:], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", ["gc_vit_base_384", "efficientvit_l0"])
def test_a_backbone_with_a_pyramid(name):
    small = dict(depths=(1, 1, 1, 1), embed_dim=16, num_heads=(1, 1, 2, 2)) if "gc" in name else {}
    backbone = TimmBackbone(resolve(name).name, 3, input_size=64, **small).eval()
    found = backbone(torch.rand(1, 3, 64, 64), BOTH | {"logits"})
    assert found.spatial.shape[1:3] == (2, 2) and found.named["logits"].shape == (1, 3)
    assert found.summary.shape[1] == backbone.summary_dim and found.spatial.shape[3] == backbone.spatial_dim
    assert Pyramid(backbone).strides == (8, 16, 32)
