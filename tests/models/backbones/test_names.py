"""TAO's backbone names, timm's, and names that nothing has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import timm

from radioplat.errors import SpecError
from radioplat.models.backbones.names import VIT_SIZES, resolve


@pytest.mark.parametrize(
    ("tao", "ours"),
    [
        ("vit_h_14_siglip_clipa_224", "vit_h_14_siglip_clipa_224"),
        ("vit_l_14_siglip_clipa_336", "vit_l_14_siglip_clipa_336"),
        ("vit_small_patch14_dinov2", "vit_small_patch14_dinov2"),
        ("vit_giant_patch14_reg4_dinov2_swiglu", "vit_giant_patch14_reg4_dinov2"),
        ("resnet_50", "resnet50"),
        ("resnet_101d", "resnet101d"),
        ("vit_base_patch16", "vit_base_patch16_224"),
        ("gc_vit_xxtiny", "gcvit_xxtiny"),
        ("gc_vit_large_384", "gcvit_large_384"),
        ("mit_b3", "mit_b3"),
        ("efficientvit_l0", "efficientvit_l0"),
        ("vit_large_patch14_dinov2_swiglu_legacy", "vit_large_patch14_dinov2_swiglu_legacy"),
        ("swin_base_224", "swin_base_patch4_window7_224"),
        ("swin_tiny_patch4_window7_224", "swin_tiny_patch4_window7_224"),
        ("hiera_base_plus_224", "hiera_base_plus_224"),
        ("fan_small", "fan_small_12_p4_hybrid"),
        ("fan_large", "fan_large_16_p4_hybrid"),
        ("convnext_tiny", "convnext_tiny"),
        ("edgenext_small", "edgenext_small"),
        ("efficientvit_b0", "efficientvit_b0"),
        ("tf_efficientnet_lite0", "tf_efficientnet_lite0"),
        ("vit_base_patch16_224.augreg_in21k", "vit_base_patch16_224"),
    ],
)
def test_timm_counterpart(tao, ours):
    found = resolve(tao, {"a": 1})
    assert (found.radio, found.name, found.kwargs) == (False, ours, {"a": 1})
    assert timm.is_model(found.name)


TAO_NAMES = Path(__file__).with_name("tao_names.txt").read_text().split()
# What neither timm nor transformers has.
REFUSED = re.compile(r"faster_vit_.*|fan_.*_p16_.*|fan_xlarge_.*|fan_swin_.*|edgenext_.*_bn_hs")


@pytest.mark.parametrize("name", TAO_NAMES)
def test_each_name_of_taos_builds_or_has_a_reason(name):
    try:
        found = resolve(name)
    except SpecError as error:
        assert REFUSED.fullmatch(name)
        (problem,) = error.problems
        assert "is not available: " in problem.message
        nearest = re.search(r"Nearest available: (\w+)", problem.hint)[1]
        assert timm.is_model(resolve(nearest).name) or resolve(nearest).radio
    else:
        assert found.radio or timm.is_model(found.name)
        assert not REFUSED.fullmatch(name)


@pytest.mark.parametrize(
    ("name", "size", "patch", "registers"),
    [
        ("c_radio_v2_vit_large_patch16_224", "large", 16, None),
        ("c_radio_v3_vit_base_patch16_reg4_dinov2", "base", 16, 4),
        ("c_radio_v3_vit_huge_patch16_224_reg4_dinov2", "huge", 16, 4),
        ("c_radio_v4_vit_so400m_patch14", "so400m", 14, None),
        ("radio_v2_5_vit_base_patch16", "base", 16, None),
        ("c_radio_p1_vit_huge_patch16_mlpnorm", "huge", 16, None),
    ],
)
def test_radio_names(name, size, patch, registers):
    found = resolve(name)
    assert found.radio and found.kwargs["patch_size"] == patch and found.kwargs.get("num_registers") == registers
    assert {k: found.kwargs[k] for k in VIT_SIZES[size]} == VIT_SIZES[size]


@pytest.mark.parametrize(
    ("name", "scaled", "tokens", "slots", "multiple"),
    [
        ("c_radio_v2_vit_large_patch16", False, 4, (0, 1, 2), 8),
        ("c_radio_v3_vit_base_patch16_reg4_dinov2", True, 4, (0, 1, 2), 8),
        ("c_radio_v4_vit_so400m_patch16", False, 3, (0, 1), 10),
        ("radio_v2_5_vit_base_patch16", False, 4, (0, 1, 2), 8),
        ("c_radio_p1_vit_huge_patch16_mlpnorm", False, 3, (0, 1, 2), 16),
        ("c_radio_p2_vit_huge_patch16_mlpnorm", False, 4, (0, 1, 2, 3), 16),
        ("c_radio_p3_vit_huge_patch16_mlpnorm", False, 4, (0, 1, 2), 16),
    ],
)
def test_radio_names_of_nvlabs(name, scaled, tokens, slots, multiple):
    """As TAO's registry builds them: no norm at the end, positions for 2048 pixels."""
    found = resolve(name)
    assert found.kwargs["final_norm"] is False and found.kwargs["cpe_max_size"] == 2048
    assert ("init_values" in found.kwargs) is scaled and found.kwargs["register_multiple"] == multiple
    assert (found.class_tokens, found.summary_slots) == (tokens, slots)
    ours = resolve("radio_vit_base_patch16")
    assert not {"final_norm", "cpe_max_size", "init_values"} & set(ours.kwargs) and ours.class_tokens == 1


def test_the_users_arguments_win():
    found = resolve("c_radio_v3_vit_base_patch16_reg4_dinov2", {"embed_dim": 32, "depth": 1})
    assert found.kwargs["embed_dim"] == 32 and found.kwargs["depth"] == 1 and found.kwargs["num_heads"] == 12


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("resnet_51", "resnet"),
        ("convnext_tinny", "convnext_tiny"),
        ("c_radio_v3_vit_bse_patch16_reg4_dinov2", "small, base"),
        ("c_radio_v3_vit_base_path16_reg4_dinov2", "c_radio_v3_vit_base_patch16_reg4_dinov2"),
        ("mit_b6", "mit_b5"),
        ("faster_vit_0_224", "fastvit_sa24"),
    ],
)
def test_an_unknown_name_lists_the_nearest(name, near):
    with pytest.raises(SpecError) as caught:
        resolve(name, where="distill.teacher[1].model.backbone.type")
    (problem,) = caught.value.problems
    assert (
        problem.where == "distill.teacher[1].model.backbone.type" and name in problem.message and near in problem.hint
    )
