"""Noise on weights: what it is in closed form, and that nothing else changes."""

from __future__ import annotations

import copy

import torch
from torch import nn

from radioplat.models.backbones.radio_vit import RadioViT
from radioplat.models.modifiers.damp import add_weight_noise
from radioplat.models.modifiers.spectral import reparametrize

TINY = dict(patch_size=8, embed_dim=16, depth=2, num_heads=2, num_class_tokens=1, cpe_max_size=32)


def test_names_and_evaluation_stay():
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 2)).eval()
    noisy = copy.deepcopy(plain)
    assert add_weight_noise(noisy, 0.3) == 2
    x = torch.randn(2, 3, 4, 4)
    assert list(noisy.state_dict()) == list(plain.state_dict()) and torch.equal(noisy(x), plain(x))
    noisy.train()
    assert not torch.allclose(noisy(x), plain(x))
    assert not torch.equal(noisy(x), noisy(x))
    assert torch.equal(_seeded(copy.deepcopy(noisy), x), _seeded(noisy, x))


def _seeded(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(7)
    return module(x)


def test_the_gradient_is_the_product_rule():
    layer = nn.Linear(5, 3, bias=False)
    add_weight_noise(layer, 0.2)
    x, upstream = torch.randn(4, 5), torch.randn(4, 3)
    torch.manual_seed(7)
    xi = 1 + 0.2 * torch.randn(3, 5)
    out = _seeded(layer, x)
    torch.testing.assert_close(out, x @ (layer.weight * xi).T)
    (out * upstream).sum().backward()
    torch.testing.assert_close(layer.weight.grad, xi * (upstream.T @ x))


def test_spread_of_the_noise():
    layer = nn.Linear(400, 400, bias=False)
    nn.init.ones_(layer.weight)
    add_weight_noise(layer, 0.1)
    xi = _seeded(layer, torch.eye(400)).detach()
    assert abs(float(xi.mean()) - 1) < 1e-3 and abs(float(xi.std()) - 0.1) < 1e-3


def test_a_reparametrized_layer_is_noisy_too_and_a_recomputed_one_draws_the_same():
    torch.manual_seed(0)
    vit = RadioViT(**TINY)
    reparametrize(vit)
    assert add_weight_noise(vit, 0.2) == 9  # four in each block, and the embedder
    images, gradients = torch.rand(2, 3, 32, 32), []
    for enable in (False, True):
        vit.train().set_grad_checkpointing(enable)
        vit.zero_grad()
        _seeded(vit, images).spatial.square().sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in vit.parameters()]))
    torch.testing.assert_close(*gradients)
    vit.eval()
    assert torch.equal(vit(images).spatial, vit(images).spatial)
    vit.train()
    assert not torch.allclose(vit.blocks[0].attn.qkv.weight, vit.blocks[0].attn.qkv.weight)
