"""RADIO's own checkpoints: what NVlabs' code computes from these tensors, computed here from their description."""

from __future__ import annotations

import argparse
import json

import pytest
import torch
from safetensors.torch import save_file
from timm.models.vision_transformer import Block
from torch.nn.utils.parametrizations import spectral_norm

from radioplat.errors import SpecError, WeightsError
from radioplat.models.backbones.radio_vit import RadioViT
from radioplat.models.heads import MLP2
from radioplat.models.weights.radio_layout import fold_spectral
from radioplat.teachers.base.teacher import describe

TEACHERS = [
    {"name": "clip", "type": "open_clip"},
    {"name": "sam", "type": "sam", "use_summary": False, "fd_upsample_factor": 2},
    {"name": "dino", "type": "dino_v2"},
    {"name": "clip", "type": "open_clip"},
]
ARGS = argparse.Namespace(
    model="vit_x", teachers=TEACHERS, cls_token_per_teacher=True, mlp_version="v2", cpe_max_size=128
)


@pytest.fixture
def radio():
    """Backbone, heads and the map's normalizer."""
    torch.manual_seed(0)
    backbone = RadioViT(
        patch_size=16, num_class_tokens=3, cpe_max_size=128, num_registers=5, embed_dim=32, depth=2, num_heads=2
    ).eval()
    backbone.norm = torch.nn.Identity()
    heads = {
        "_heads.clip": MLP2(32, 16, 24, 1),
        "_heads.dino": MLP2(32, 16, 20),
        "_feature_projections.clip": MLP2(32, 16, 24),
        "_feature_projections.sam": MLP2(32, 16, 4 * 12),
        "_heads.sam": MLP2(32, 16, 12),
    }
    normalizer = {"mean": torch.randn(32), "tx": torch.randn(32, 32)}
    return backbone, heads, normalizer


def tensors(radio) -> dict[str, torch.Tensor]:
    backbone, heads, normalizer = radio
    found = {f"base_model.{k}": v for k, v in backbone.state_dict().items()}
    for prefix, head in heads.items():
        found |= {f"{prefix}.{k}": v for k, v in head.state_dict().items()}
    found |= {f"_feature_normalizer.{k}": v for k, v in normalizer.items()}
    found["input_conditioner.norm_mean"] = torch.tensor([0.1, 0.2, 0.3]).view(3, 1, 1)
    found["input_conditioner.norm_std"] = torch.tensor([0.5, 0.6, 0.7]).view(3, 1, 1)
    return found


@pytest.fixture
def pth(radio, write):
    return write({"state_dict": tensors(radio), "args": ARGS, "epoch": 3}, "radio.pth")


def outputs(radio, images):
    backbone, heads, normalizer = radio
    with torch.no_grad():
        found = backbone(images)
        spatial = (found.spatial - normalizer["mean"]) @ normalizer["tx"].T
    return found.named["tokens"], spatial, heads


def test_the_backbone_leaves_out_a_token_without_a_summary(pth, radio, teacher, same_as, normalised):
    tokens, spatial, _ = outputs(radio, normalised())
    info = same_as(teacher("radio", pth, {"num_heads": 2}), tokens[:, [0, 2]].flatten(1), spatial)
    assert (info.adapter, info.stride, info.summary_dim) == ("radio", 16, 64)
    assert info.native.mean == pytest.approx((0.1, 0.2, 0.3)) and info.native.std == pytest.approx((0.5, 0.6, 0.7))


def test_an_adaptor(pth, radio, teacher, same_as, normalised):
    tokens, spatial, heads = outputs(radio, normalised())
    info = same_as(
        teacher("radio", pth, {"num_heads": 2, "adaptor": "clip"}),
        heads["_heads.clip"](tokens[:, 0]),
        heads["_feature_projections.clip"](spatial),
    )
    assert (info.summary_dim, info.spatial_dim, info.native.summary) == (24, 24, "adaptor clip")


def test_an_adaptor_with_a_finer_map(pth, radio, teacher, same_as, normalised):
    """Each position's vector is a 2 x 2 block of the finer map, row by row."""
    tokens, spatial, heads = outputs(radio, normalised())
    blocks = heads["_feature_projections.sam"](spatial)
    fine = torch.zeros(2, 8, 8, 12)
    for y in range(8):
        for x in range(8):
            k = 12 * (2 * (y % 2) + x % 2)
            fine[:, y, x] = blocks[:, y // 2, x // 2, k : k + 12]
    info = same_as(teacher("radio", pth, {"num_heads": 2, "adaptor": "sam"}), heads["_heads.sam"](tokens[:, 1]), fine)
    assert (info.stride, info.grid) == (8, (8, 8))
    with pytest.raises(SpecError, match="multiple of the patch 16"):
        describe(teacher("radio", pth, {"num_heads": 2, "adaptor": "sam"}, size=72))


@pytest.fixture
def attending(radio, write):
    """attending(factor=1) -> a file whose adaptor "sam3" attends, as C-RADIOv4's do, and what it says of a map.

    What it says is computed of timm's blocks and torch's layers by the names of the tensors alone.
    """

    def make(factor: int = 1):
        blocks = torch.nn.Sequential(*(Block(32, 16, init_values=1e-5) for _ in range(2))).eval()
        fc1, norm, last = torch.nn.Linear(32, 16), torch.nn.LayerNorm(16), torch.nn.Linear(16, factor**2 * 12)
        with torch.no_grad():
            for parameter in blocks.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        parts = {"blocks": blocks, "mlp.fc1": fc1, "mlp.final.0": norm, "mlp.final.2": last}
        found = tensors(radio)
        for name, part in parts.items():
            found |= {f"_feature_projections.sam3.{name}.{k}": v for k, v in part.state_dict().items()}
        found |= {f"_heads.sam3.{k}": v for k, v in radio[1]["_heads.sam"].state_dict().items()}
        entry = {"name": "sam3", "type": "sam3", "token_slot": 1, "spatial_mlp_version": "attn"}
        entry |= {"fd_upsample_factor": factor} if factor > 1 else {}
        args = argparse.Namespace(**{**vars(ARGS), "teachers": [*TEACHERS, entry]})
        found["base_model.patch_generator.cls_token.token"] = torch.randn(8, 32)
        path = write({"state_dict": found, "args": args}, "v4.pth")
        radio[0].load_state_dict(
            {k.removeprefix("base_model."): v for k, v in found.items() if k.startswith("base_model")}
        )

        def said(spatial):
            with torch.no_grad():
                tokens = blocks(spatial.flatten(1, 2))
                return last(torch.nn.functional.gelu(norm(fc1(tokens)))).reshape(*spatial.shape[:3], -1)

        return path, said

    return make


def test_an_adaptor_that_attends(attending, radio, teacher, same_as, normalised):
    path, said = attending()
    radio[0].patch_generator.num_class_tokens, radio[0].patch_generator.num_registers = 4, 4
    tokens, spatial, heads = outputs(radio, normalised())
    info = same_as(
        teacher("radio", path, {"num_heads": 2, "adaptor": "sam3"}), heads["_heads.sam"](tokens[:, 1]), said(spatial)
    )
    assert (info.stride, info.summary_dim, info.spatial_dim) == (16, 12, 12)


def test_an_adaptor_that_attends_with_a_finer_map(attending, radio, teacher, same_as, normalised):
    path, said = attending(2)
    radio[0].patch_generator.num_class_tokens, radio[0].patch_generator.num_registers = 4, 4
    tokens, spatial, heads = outputs(radio, normalised())
    blocks = said(spatial).unflatten(-1, (4, 12)).transpose(3, 4).flatten(3)  # torch's order: channels first
    fine = torch.nn.functional.pixel_shuffle(blocks.movedim(3, 1), 2)
    info = same_as(
        teacher("radio", path, {"num_heads": 2, "adaptor": "sam3"}),
        heads["_heads.sam"](tokens[:, 1]),
        fine.movedim(1, 3),
    )
    assert (info.stride, info.grid) == (8, (8, 8))


def test_a_head_of_another_kind_is_refused(radio, teacher, write):
    """Version 1 ends in `fc2`."""
    old = {f"_heads.old.{k}": torch.zeros(4, 32) if k.endswith("weight") else torch.zeros(4) for k in ("fc1.weight",)}
    old["_heads.old.fc2.weight"] = torch.zeros(3, 4)
    path = write({"state_dict": tensors(radio) | old, "args": ARGS}, "v1.pth")
    with pytest.raises(WeightsError, match="the summary head of 'old' is of an unknown kind"):
        describe(teacher("radio", path, {"num_heads": 2, "adaptor": "old"}))


def test_a_hugging_face_folder(radio, teacher, same_as, tmp_path, normalised):
    backbone, heads, normalizer = radio
    found = {f"radio_model.model.{k}": v for k, v in backbone.state_dict().items()}
    found |= {f"radio_model.feature_normalizer.{k}": v for k, v in normalizer.items()}
    for prefix, part in (("_heads.clip", "head_mlp"), ("_feature_projections.clip", "feat_mlp")):
        found |= {f"radio_model.adaptors.clip.{part}.{k}": v for k, v in heads[prefix].state_dict().items()}
    found["radio_model.input_conditioner.norm_mean"] = torch.full((3, 1, 1), 0.25)
    found["radio_model.input_conditioner.norm_std"] = torch.full((3, 1, 1), 0.5)
    found["radio_model.summary_idxs"] = torch.tensor([0, 2])
    save_file({k: v.contiguous().clone() for k, v in found.items()}, tmp_path / "model.safetensors")
    config = {"model_type": "radio", "auto_map": {}, "args": vars(ARGS), "adaptor_configs": {"clip": {}}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    tokens, spatial, heads = outputs(radio, normalised())
    info = same_as(teacher(None, str(tmp_path), {"num_heads": 2}), tokens[:, [0, 2]].flatten(1), spatial)
    assert info.adapter == "radio" and info.native.mean == (0.25, 0.25, 0.25)
    same_as(
        teacher(None, str(tmp_path), {"num_heads": 2, "adaptor": "clip"}),
        heads["_heads.clip"](tokens[:, 0]),
        heads["_feature_projections.clip"](spatial),
    )


def test_refusals(pth, teacher, write):
    with pytest.raises(SpecError, match="no adaptor 'siglip'") as caught:
        describe(teacher("radio", pth, {"adaptor": "siglip"}))
    assert "clip, dino, sam" in caught.value.problems[0].hint
    other = write({"a.weight": torch.ones(2)})
    with pytest.raises(WeightsError, match="not a RADIO checkpoint"):
        describe(teacher("radio", other))


def with_args(radio, write, **args) -> str:
    return write({"state_dict": tensors(radio), "args": argparse.Namespace(**{**vars(ARGS), **args})}, "radio.pth")


SIZES = {"embed_dim": 32, "depth": 2, "num_heads": 2, "patch_size": 16}


@pytest.mark.parametrize(
    "kwargs",
    [
        {"scaled_ln": True},
        {"block_fn": "ResPostBlock"},
        {"rope_theta": 100.0, "img_size": 512},
        {"class_token": True, "attn_layer": "diff"},
    ],
    ids=lambda kwargs: ",".join(kwargs),
)
def test_arguments_that_are_not_known_are_refused_by_name(kwargs, radio, teacher, write):
    path = with_args(radio, write, model_kwargs=SIZES | kwargs)
    named = [name for name in kwargs if name not in ("img_size", "class_token")]
    with pytest.raises(WeightsError, match=f"radio.pth.*{named[0]}=") as caught:
        describe(teacher("radio", path))
    assert caught.value.problems[0].where == "distill.teacher[0].pretrained_teacher_model_path"


def test_arguments_that_change_nothing_are_taken(radio, teacher, same_as, normalised, write):
    tokens, spatial, _ = outputs(radio, normalised())
    neutral = {"scaled_ln": False, "img_size": 512, "weight_init": "skip", "reg_tokens": 4, "no_embed_class": True}
    path = with_args(radio, write, model_kwargs=SIZES | neutral, model="vit_giant_patch16_224")
    same_as(teacher("radio", path), tokens[:, [0, 2]].flatten(1), spatial)


def test_an_activation_that_the_file_names(radio, teacher, same_as, normalised, write):
    for block in radio[0].blocks:
        block.mlp.act = torch.nn.SiLU()
    tokens, spatial, _ = outputs(radio, normalised())
    path = with_args(radio, write, model_kwargs=SIZES | {"act_layer": "silu"}, model="vit_base_patch16_224")
    same_as(teacher("radio", path), tokens[:, [0, 2]].flatten(1), spatial)


@pytest.mark.parametrize("model", ["vit_base_patch16_clip_quickgelu_224", "vit_base_patch16_rpn_224", "resnet50"])
def test_blocks_with_the_same_tensors_that_compute_otherwise_are_refused(model, radio, teacher, write):
    path = with_args(radio, write, model_kwargs=SIZES, model=model)
    with pytest.raises(WeightsError, match=model):
        describe(teacher("radio", path))


def test_heads_of_attention_are_not_guessed(pth, teacher):
    with pytest.raises(WeightsError, match="how many attention heads its ViT has, 32 wide") as caught:
        describe(teacher("radio", pth))
    assert "num_heads" in caught.value.problems[0].hint


def test_a_vit_without_class_tokens_is_refused(radio, teacher, write):
    found = tensors(radio)
    del found["base_model.patch_generator.cls_token.token"]
    path = write({"state_dict": found, "args": ARGS}, "radio.pth")
    with pytest.raises(WeightsError, match="has no patch_generator.cls_token.token"):
        describe(teacher("radio", path, {"num_heads": 2}))


def test_of_weights_and_their_moving_average_the_average_is_taken(radio, teacher, same_as, normalised, write):
    """As NVlabs' loader does."""
    raw = {k: v + 1 if v.is_floating_point() else v for k, v in tensors(radio).items()}
    path = write({"state_dict": raw, "state_dict_ema": tensors(radio), "args": ARGS}, "radio.pth")
    tokens, spatial, _ = outputs(radio, normalised())
    same_as(teacher("radio", path, {"num_heads": 2}), tokens[:, [0, 2]].flatten(1), spatial)


def test_spectral_weights_become_plain():
    """Against torch's spectral_norm: W / sigma is its weight, and RADIO's is that times softplus(scale) + 0.05."""
    torch.manual_seed(0)
    layer = spectral_norm(torch.nn.Linear(6, 9), eps=1e-12).eval()
    inner = layer.parametrizations.weight
    state = {
        "mlp.fc1.parametrizations.weight.original": inner.original.detach(),
        "mlp.fc1.parametrizations.weight.0._u": inner[0]._u,
        "mlp.fc1.parametrizations.weight.0._v": inner[0]._v,
        "mlp.fc1.parametrizations.weight.0.scale": torch.tensor([[0.7]]),
        "mlp.fc1.parametrizations.weight.0._sn_version": torch.tensor(2),
        "mlp.fc1.bias": layer.bias.detach(),
    }
    folded = fold_spectral(state)
    scale = torch.nn.functional.softplus(torch.tensor(0.7)) + 0.05
    assert set(folded) == {"mlp.fc1.weight", "mlp.fc1.bias"}
    torch.testing.assert_close(folded["mlp.fc1.weight"], layer.weight.detach() * scale)
    # q, k, v apart: here only q is reparametrized.
    base = "attn.qkv.parametrizations.weight."
    chunked = {f"{base}original": torch.cat([inner.original.detach()] * 3)}
    chunked |= {f"{base}0.parts.0.{k.rpartition('.')[2]}": v for k, v in state.items() if ".0." in k}
    q, k, v = fold_spectral(chunked)["attn.qkv.weight"].chunk(3)
    torch.testing.assert_close(q, folded["mlp.fc1.weight"])
    assert torch.equal(k, inner.original) and torch.equal(v, inner.original)
