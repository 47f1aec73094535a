"""Bytes that a forward keeps: in closed form, and as many as autograd really saves."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from radioplat.models.activations import activation_bytes
from radioplat.models.backbones.timm_backbone import TimmBackbone


def test_a_layer_keeps_its_input_for_the_gradient_of_its_weights():
    size, width = 8, 5
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * size**2, width), nn.GELU(), nn.Linear(width, width))
    images, hidden = 3 * size**2, width
    kept = images + hidden + hidden  # inputs of both layers, and that of GELU
    assert activation_bytes(model, model, size, torch.float32) == 4 * kept
    assert activation_bytes(model, model, size, torch.bfloat16) == 2 * kept


def test_what_gets_no_gradient_keeps_nothing():
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8**2, 5)).requires_grad_(False)
    assert activation_bytes(model, model, 8, torch.float32) == 0


@pytest.mark.parametrize("name", ["test_vit", "test_resnet", "test_efficientnet"])
def test_they_are_those_that_autograd_saves(name):
    sizes = {"img_size": 64} if name == "test_vit" else {}
    model = TimmBackbone(name, num_classes=0, **sizes).model.train()
    own = {tensor.data_ptr() for tensor in [*model.parameters(), *model.buffers()]}
    saved: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.data_ptr() not in own:
            saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(torch.zeros(1, 3, 64, 64))
    real = sum(tensor.untyped_storage().nbytes() for tensor in saved.values())
    assert activation_bytes(model, model, 64, torch.float32) == pytest.approx(real, rel=0.05)
