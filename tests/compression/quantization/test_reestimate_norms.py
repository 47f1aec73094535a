"""After re-estimation, outputs of quantized convolutions have the statistics that they have in floats."""

from __future__ import annotations

import pytest
import skimage
import torch
from torch import nn

from radioplat.compression.quantization.quantize_model import quantize_model
from radioplat.models.modifiers.fold_batchnorm import fold_batch_norm
from radioplat.models.student.student import Student
from radioplat.spec.schema.quantize import QuantizeConfig
from tests.helpers.drawn_student import drawn_student

SIZE = 64


@pytest.fixture(scope="module")
def batches():
    picture = torch.from_numpy(skimage.data.astronaut()).permute(2, 0, 1)
    crops = [picture[:, y : y + SIZE, x : x + SIZE] for y in range(0, 440, 64) for x in range(0, 440, 64)]
    return list(torch.stack(crops[:48]).split(16))


@pytest.fixture(scope="module")
def plain():
    """A ResNet; timm begins the last BatchNorm of each branch at 0."""
    student = drawn_student("resnet10t", SIZE)
    for module in student.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
    return student


def statistics(model: nn.Module, batches) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Mean and standard deviation of each channel of each convolution."""
    outputs: dict[str, list[torch.Tensor]] = {}
    hooks = [
        module.register_forward_hook(
            lambda _, __, y, name=name: outputs.setdefault(name, []).append(y.transpose(0, 1).clone())
        )
        for name, module in model.named_modules()
        if isinstance(module, nn.Conv2d)
    ]
    with torch.no_grad():
        for images in batches:
            model(images)
    for hook in hooks:
        hook.remove()
    values = {name: torch.cat([y.flatten(1) for y in ys], 1) for name, ys in outputs.items()}
    return {name: (value.mean(1), value.std(1)) for name, value in values.items()}


def apart(student: Student, floats: dict, batches) -> float:
    """Mean distance of the means, in standard deviations, plus that of the logarithms of these."""
    total = []
    for name, (mean, deviation) in statistics(student, batches).items():
        wanted_mean, wanted = floats[name]
        total += [((mean - wanted_mean) / wanted).abs().mean(), (deviation / wanted).log().abs().mean()]
    return float(torch.stack(total).mean())


def test_statistics_are_those_of_the_float_model(plain, batches):
    floats = statistics(fold_batch_norm(plain, batches[0]), batches)
    config = QuantizeConfig(default_layer_dtype="int4", default_activation_dtype="int8")
    without = quantize_model(plain, config, batches)
    config.reestimate_batchnorm = True
    done = quantize_model(plain, config, batches)
    assert without.reestimated == [] and len(done.reestimated) == done.folded > 10
    assert apart(done.model, floats, batches) < 0.2 * apart(without.model, floats, batches)
    assert done.cosine["spatial"] > without.cosine["spatial"]


def test_the_rounded_numbers_stay(plain, batches):
    a, b = (quantize_model(plain, QuantizeConfig(reestimate_batchnorm=on), batches).model for on in (False, True))
    moved = 0
    for name in a.architecture.quantized.layers:
        one, other = a.get_submodule(name), b.get_submodule(name)
        codes = [(m.weight / m.weight_quantizer.scale.reshape(-1, 1, 1, 1)).round() for m in (one, other)]
        assert (codes[0] != codes[1]).float().mean() < 1e-3  # ties
        moved += not torch.equal(one.bias, other.bias)
    assert moved == len(a.architecture.quantized.layers)


def test_with_one_scale_a_layer_means_alone_are_corrected(plain, batches):
    floats = statistics(fold_batch_norm(plain, batches[0]), batches)
    a, b = (
        quantize_model(plain, QuantizeConfig(reestimate_batchnorm=on, per_channel=False), batches).model
        for on in (False, True)
    )
    off, on = (
        torch.stack([((mean - floats[name][0]) / floats[name][1]).abs().mean() for name, (mean, _) in found.items()])
        for found in (statistics(a, batches), statistics(b, batches))
    )
    assert on.mean() < 0.3 * off.mean()
    for name in a.architecture.quantized.layers:
        assert torch.equal(a.get_submodule(name).weight, b.get_submodule(name).weight)
