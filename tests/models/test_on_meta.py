"""Modules that are built without values."""

from __future__ import annotations

import pytest
import timm
import torch

from radioplat.models.on_meta import on_meta, without_random_values

NAMES = ("test_vit", "test_resnet", "tf_efficientnet_lite0", "convnext_atto", "mobilenetv3_small_050")


@pytest.mark.parametrize("name", NAMES)
def test_shapes_are_those_of_a_model_with_values(name):
    with on_meta():
        shell = timm.create_model(name)
        outputs = shell.forward_features(torch.empty(1, 3, 160, 160))
    model = timm.create_model(name)
    assert outputs.shape == model.forward_features(torch.zeros(1, 3, 160, 160)).shape
    shapes = {key: value.shape for key, value in model.state_dict().items()}
    assert shapes == {key: value.shape for key, value in shell.state_dict().items()}


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_drawn_and_all_else_is_as_ever(name):
    model = timm.create_model(name).eval()
    before = torch.get_rng_state()
    with without_random_values():
        loaded = timm.create_model(name).eval()
    assert (torch.get_rng_state() == before).all()
    assert all((a == b).all() for a, b in zip(model.buffers(), loaded.buffers(), strict=True))
    loaded.load_state_dict(model.state_dict())
    images = torch.rand(2, 3, 160, 160)
    assert (model(images) == loaded(images)).all()
