"""Backbones of many families: the exported Q/DQ graph has no error of the linter, and computes what torch computes."""

from __future__ import annotations

import pytest
import torch

from radioplat.compression.quantization.quantize_model import quantize_model
from radioplat.errors import RadioplatError
from radioplat.exporting.onnx.export import export_onnx
from radioplat.spec.schema.quantize import QuantizeConfig
from tests.helpers.drawn_student import drawn_student

QUICK = ("regnety_002", "resnetv2_50", "pit_ti_224")
# Those that cannot become a Q/DQ graph, and what the error says.
REFUSED = {
    "nf_resnet26": "nothing is left to quantize .ScaledStdConv2d has no quantized form",
    "pit_ti_224": "model.backbone.type: timm.s pit_ti_224: its 1 tokens are no map of 7 x 7 positions",
}
FAMILIES = """
caformer_s18 cait_xxs24_224 coatnet_nano_rw_224 convnext_atto cspresnet50 darknet17 davit_tiny densenet121
dla34 edgenext_xx_small efficientnet_b0 efficientvit_b0 ese_vovnet19b_slim eva02_tiny_patch14_224 fastvit_t8
ghostnet_050 hgnetv2_b0 hrnet_w18_small inception_next_atto levit_128s mambaout_femto mobilenetv2_050
mobilenetv3_small_050 mobilenetv4_conv_small_050 mobileone_s0 mobilevit_xxs nf_resnet26 pit_ti_224 regnetx_002
regnety_002 repvgg_a0 repvit_m0_9 res2net50_26w_4s resnetv2_50 resnext50_32x4d seresnet18 starnet_s1
swin_tiny_patch4_window7_224 tf_efficientnetv2_b0 tiny_vit_5m_224 vit_small_patch16_dinov3 xcit_nano_12_p8_224
""".split()
SIZES = {"edgenext_xx_small": 256, "mobilevit_xxs": 256, "vit_small_patch16_dinov3": 64}


def size_of(name: str) -> int:
    """Return the sides of images; small ones where the family takes any."""
    return SIZES.get(name, 224 if "224" in name or name.startswith(("levit", "davit", "caformer")) else 96)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.proof) for name in FAMILIES]
)
def test_a_family_has_no_error_or_says_why(name, tmp_path):
    size = size_of(name)
    student = drawn_student(name, size)
    images = torch.randint(0, 256, (2, 3, size, size), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    if name in REFUSED:
        with pytest.raises(RadioplatError, match=REFUSED[name]):
            export_onnx(
                quantize_model(student, QuantizeConfig(), [images]).model, tmp_path / "a.onnx", height=size, width=size
            )
        return
    made = quantize_model(student, QuantizeConfig(), [images]).model
    report = export_onnx(made, tmp_path / "a.onnx", height=size, width=size, batch_size=1)
    assert report.quantized.lint.errors == []
