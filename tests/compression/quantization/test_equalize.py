"""Cross-layer equalization: same outputs, like ranges, and no pair where anything else sees the tensor."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from radioplat.compression.quantization.equalize import equalize, equalize_pair, find_pairs
from radioplat.models.backbones.timm_backbone import TimmBackbone
from radioplat.models.modifiers.fold_batchnorm import fold_batch_norm


class Chain(nn.Module):
    """1x1, depthwise, 1x1, ReLU between; its tail is used twice."""

    def __init__(self, act: type[nn.Module] = nn.ReLU) -> None:
        super().__init__()
        self.up = nn.Conv2d(3, 8, 1)
        self.depth = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.down = nn.Conv2d(8, 4, 1)
        self.tail = nn.Conv2d(4, 4, 1)
        self.head = nn.Linear(4, 2)
        self.act = act(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps to logits."""
        x = self.down(self.act(self.depth(self.act(self.up(x)))))
        x = self.tail(x) + x
        return self.head(x.mean((2, 3)))


def rescaled(model: Chain, by: float) -> Chain:
    """The fixture of the notes: channel i of a layer times s, the next by 1/s."""
    scale = by ** torch.linspace(-1, 1, 8)
    with torch.no_grad():
        model.up.weight.mul_(scale.reshape(-1, 1, 1, 1))
        model.up.bias.mul_(scale)
        model.depth.weight.div_(scale.reshape(-1, 1, 1, 1))
    return model


def test_outputs_stay_and_ranges_meet():
    torch.manual_seed(0)
    model = rescaled(Chain().eval(), 30)
    x = torch.randn(4, 3, 6, 6)
    before = model(x)
    assert equalize(model, x) == [("up", "depth"), ("depth", "down")]
    assert torch.allclose(model(x), before, rtol=1e-4, atol=1e-5)
    made = model.depth.weight.flatten(1).abs().amax(1)
    taken = model.down.weight.abs().amax((0, 2, 3))
    assert torch.allclose(made, taken, rtol=2e-2)
    spread = model.up.weight.flatten(1).abs().amax(1)
    assert torch.allclose(spread, model.depth.weight.flatten(1).abs().amax(1), rtol=2e-2)


def test_one_pair_is_the_closed_form():
    first, second = nn.Linear(2, 2), nn.Linear(2, 1)
    with torch.no_grad():
        first.weight.copy_(torch.tensor([[8.0, 1.0], [0.0, 0.0]]))
        second.weight.copy_(torch.tensor([[2.0, 5.0]]))
        first.bias.copy_(torch.tensor([4.0, 3.0]))
    assert equalize_pair(first, second) == pytest.approx(torch.tensor(2.0).log().item())  # s = sqrt(8 * 2) / 2
    assert first.weight.tolist() == [[4.0, 0.5], [0.0, 0.0]] and second.weight.tolist() == [[4.0, 5.0]]
    assert first.bias.tolist() == [2.0, 3.0]  # a channel of zeros stays
    assert equalize_pair(first, second) == pytest.approx(0, abs=1e-6)


def test_other_activations_and_other_users_part_a_pair():
    x = torch.randn(1, 3, 6, 6)
    assert find_pairs(Chain(nn.SiLU).eval(), x)[0] == []
    assert ("down", "tail") not in find_pairs(Chain().eval(), x)[0]  # the addition sees it, too
    clipped = Chain(nn.ReLU6).eval()
    assert find_pairs(clipped, x) == ([("up", "depth"), ("depth", "down")], {"up", "depth"})
    assert equalize(clipped, x) == []  # without images nobody knows which channels come near 6


def test_through_a_relu6_no_value_of_the_calibration_images_is_clipped_anew():
    torch.manual_seed(0)
    model = rescaled(Chain(nn.ReLU6).eval(), 10)
    with torch.no_grad():
        model.up.bias[7] = 9  # a channel that is clipped already
    batches = [torch.randn(4, 3, 6, 6) for _ in range(3)]
    before = [model(x) for x in batches]
    highest = torch.stack([model.up(x).amax((0, 2, 3)) for x in batches]).amax(0)
    weights = model.up.weight.detach().clone()
    assert equalize(model, batches[0], batches) == [("up", "depth"), ("depth", "down")]
    for x, wanted in zip(batches, before, strict=True):
        torch.testing.assert_close(model(x), wanted, rtol=1e-4, atol=1e-5)
    assert torch.equal(model.up.weight[7], weights[7])
    peaks = torch.stack([model.up(x).amax((0, 2, 3)) for x in batches]).amax(0)
    assert (peaks <= highest.clamp_min(6 / 1.25 * 1.01)).all() and (peaks > 1.05 * highest).any()
    assert (weights[0] / model.up.weight[0] < 0.5).all(), "the channel with the smallest weights was enlarged"


@pytest.mark.parametrize(("name", "count"), [("resnet18", 8), ("resnet50", 32), ("vit_tiny_patch16_224", 0)])
@torch.no_grad()
def test_pairs_of_known_models(name, count):
    kwargs = {"depth": 2} if name.startswith("vit") else {}
    model = fold_batch_norm(TimmBackbone(name, **kwargs).eval(), torch.randn(1, 3, 32, 32))
    pairs, _ = find_pairs(model, torch.randn(1, 3, 32, 32))
    assert len(pairs) == count and all(a.rpartition(".")[0] == b.rpartition(".")[0] for a, b in pairs)
