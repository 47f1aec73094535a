"""FAN: as large as published, for images of many sizes, and its channel attention by hand."""

from __future__ import annotations

import pytest
import timm
import torch

from radioplat.models.backbones.fan.fan import ChannelProcessing, Fan
from radioplat.models.backbones.names import resolve
from radioplat.models.backbones.pyramid import Pyramid
from radioplat.models.backbones.timm_backbone import TimmBackbone

SMALL = dict(embed_dim=16, depth=2, num_heads=4, depths=(1, 1))


@pytest.mark.parametrize(
    ("name", "millions"), [("fan_tiny", 7.4), ("fan_small", 26.3), ("fan_base", 50.4), ("fan_large", 76.8)]
)
def test_it_is_as_large_as_published(name, millions):
    """FAN-Hybrid of Zhou et al. 2022, millions of parameters."""
    with torch.device("meta"):
        model = timm.create_model(resolve(name).name)
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(millions, rel=0.015)
    # Names of the published files.
    expected = {"cls_token", "blocks.3.attn.kv.weight", "blocks.0.mlp.mlp_v.dwconv.conv1.weight", "head.bias"}
    assert expected <= set(model.state_dict())


def test_it_is_a_backbone_for_images_of_any_size():
    torch.manual_seed(0)
    backbone = TimmBackbone(resolve("fan_small").name, 3, **SMALL).eval()
    wanted = frozenset({"summary", "spatial", "logits"})
    for height, width in ((64, 64), (32, 96)):
        found = backbone(torch.rand(2, 3, height, width), wanted)
        assert found.summary.shape == (2, 16) and found.spatial.shape == (2, height // 16, width // 16, 16)
        assert found.named["logits"].shape == (2, 3)
    maps = Pyramid(backbone)(backbone, torch.rand(1, 3, 64, 64))
    assert [tuple(m.shape[1:]) for m in maps] == [(8, 8, 8), (16, 4, 4), (16, 2, 2)]


def test_every_parameter_learns_and_checkpointing_changes_nothing():
    torch.manual_seed(0)
    model = Fan(num_classes=3, **SMALL).double()
    images = torch.rand(2, 3, 32, 48, dtype=torch.float64)
    found = []
    for again in (False, True):
        model.set_grad_checkpointing(again)
        model.zero_grad()
        model(images).square().sum().backward()
        found.append({name: p.grad.clone() for name, p in model.named_parameters()})
    assert all(grad.abs().sum() > 0 for grad in found[0].values())
    torch.testing.assert_close(found[0], found[1])


def test_a_channel_counts_by_the_sigmoid_of_its_agreement_with_the_prototype():
    torch.manual_seed(0)
    layer = ChannelProcessing(6, 2, 12).double().eval()
    layer.temperature.data = torch.tensor([0.5, 3.0], dtype=torch.float64)[:, None, None]
    x = torch.randn(1, 8, 6, dtype=torch.float64)
    values, q = layer.norm_v(layer.mlp_v(x, 2, 4))[0], layer.q(x)[0].exp()
    expected = torch.empty(8, 6, dtype=torch.float64)
    for channel in range(6):
        head = slice(3 * (channel // 3), 3 * (channel // 3) + 3)
        prototype = (x[0, :, head].exp() / x[0, :, head].exp().sum(0)).mean(1)
        agreement = (q[:, channel] / q[:, channel].sum() * prototype).sum()
        expected[:, channel] = values[:, channel] * agreement.sigmoid() * (0.5, 3.0)[channel // 3]
    torch.testing.assert_close(layer(x, 2, 4)[0], expected)


def test_heads_that_do_not_divide_the_width_are_refused():
    with pytest.raises(ValueError, match="embed_dim 16 is not a multiple of num_heads 3"):
        Fan(**SMALL | {"num_heads": 3})
