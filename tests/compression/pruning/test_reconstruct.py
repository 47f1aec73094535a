"""Layers that lost inputs, fitted again to what they output before."""

from __future__ import annotations

import pytest
import torch

from radioplat.compression.pruning.prune import prune_model
from radioplat.compression.pruning.reconstruct import reconstruct
from radioplat.compression.pruning.scores import ChannelScore
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.spec.schema.prune import PruneConfig

SIZE = 32
VIT = StudentArchitecture("vit_tiny_patch16_224", {"depth": 2, "embed_dim": 48, "num_heads": 3}, img_size=SIZE)
CNN = StudentArchitecture("mobilenetv2_050", {}, img_size=SIZE)


def images(count: int, seed: int) -> torch.Tensor:
    """Smooth noise: neighbouring pixels are alike, as in photographs."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, 3, 6, 6, generator=generator)
    return (torch.nn.functional.interpolate(coarse, SIZE, mode="bicubic").clamp(0, 1) * 255).to(torch.uint8)


def outputs(student: Student, of: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return student(of).spatial.flatten(1)


@pytest.mark.parametrize("architecture", [VIT, CNN], ids=["vit", "cnn"])
def test_held_out_features_come_nearer_to_those_before(architecture):
    torch.manual_seed(0)
    whole = Student(architecture).eval()
    config = PruneConfig(amount=0.5)
    small, _ = prune_model(whole, config, ChannelScore(config))
    held_out = images(64, 2)
    wanted, plain = outputs(whole, held_out), outputs(small, held_out)
    names = reconstruct(whole, small, images(256, 1), 64)
    assert names and all(
        name.endswith(("attn.proj", "mlp.fc2", "conv_pwl", "conv_pw")) or ".conv" in name for name in names
    )
    fitted = outputs(small, held_out)
    assert (fitted - wanted).square().mean() < 0.5 * (plain - wanted).square().mean()


def test_inputs_that_say_nothing_more_are_lost_without_loss():
    """Half of an MLP's hidden units are copies of the others, which the second layer then reads twice as strongly."""
    torch.manual_seed(0)
    whole = Student(VIT).eval()
    with torch.no_grad():
        for block in whole.backbone.model.blocks:
            half = block.mlp.fc1.out_features // 2
            block.mlp.fc1.weight[half:] = block.mlp.fc1.weight[:half]
            block.mlp.fc1.bias[half:] = block.mlp.fc1.bias[:half]
            block.mlp.fc2.weight[:, half:] *= 0.1  # so that the copies have the lowest scores
    config = PruneConfig(amount=0.5, exclude=["*attn*"])
    small, _ = prune_model(whole, config, ChannelScore(config))
    held_out = images(16, 2)
    wanted = outputs(whole, held_out)
    reconstruct(whole, small, images(256, 1), 64)
    assert (outputs(small, held_out) - wanted).abs().max() < 0.02 * wanted.abs().max()
