"""Folding BatchNorm changes no output."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from radioplat.models.backbones.timm_backbone import TimmBackbone
from radioplat.models.modifiers.fold_batchnorm import fold_batch_norm


def random_statistics(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.5, 0.5)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, -0.5, 0.5)
    return model.eval()


@pytest.mark.parametrize("name", ["test_efficientnet", "test_resnet", "mobilenetv3_small_050"])
@torch.no_grad()
def test_a_folded_model_says_the_same_with_no_batch_norm_left(name):
    torch.manual_seed(0)
    model = random_statistics(TimmBackbone(name))
    folded = fold_batch_norm(model, torch.randn(2, 3, 64, 64))
    images = torch.randn(3, 3, 96, 64)
    before, after = model(images), folded(images)
    assert torch.allclose(before.summary, after.summary, rtol=1e-3, atol=1e-4)
    assert torch.allclose(before.spatial, after.spatial, rtol=1e-3, atol=1e-4)
    assert not any(isinstance(m, nn.BatchNorm2d) for m in folded.modules())
    assert any(isinstance(m, nn.BatchNorm2d) for m in model.modules())


class _Shared(nn.Module):
    """A BatchNorm's input that is used once more: folding would be wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        return self.norm(y) + y


def test_a_model_that_uses_the_convolution_twice_is_left_alone():
    torch.manual_seed(0)
    model = random_statistics(_Shared())
    assert fold_batch_norm(model, torch.randn(2, 3, 8, 8)) is model


def test_a_model_without_batch_norm_is_unchanged():
    model = TimmBackbone("test_vit", img_size=64).eval()
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(fold_batch_norm(model, images)(images).summary, model(images).summary)
