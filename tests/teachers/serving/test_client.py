"""A teacher inside the worker: the same answers as the service, at the grid of the loss."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from radioplat.losses.base.reduce import to_grid
from radioplat.teachers.base.teacher import FrozenTeacher
from radioplat.teachers.serving.client import Held, InlineTeacher
from radioplat.teachers.serving.transport import unpack


def pixels() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (2, 3, 64, 64), dtype=np.uint8)


@pytest.mark.parametrize("grid", [(4, 4), (2, 2), (1, 1)])
def test_the_map_comes_at_the_grid_that_was_asked(grid, timm_teacher):
    teacher, _ = timm_teacher("test_vit", mode="combo", loss_type="MSE")
    client = InlineTeacher(teacher, grid, "cpu")
    packed = client.submit(client.share(pixels()), 0)()
    found = unpack(packed)
    own = FrozenTeacher(teacher)(torch.from_numpy(pixels()), teacher.wanted)
    assert client.name == "t" and packed.seconds > 0
    assert torch.equal(found.summary, own.summary)
    assert torch.equal(found.spatial, to_grid(own.spatial.float(), grid).bfloat16())


def test_what_no_loss_wants_is_not_sent(timm_teacher):
    teacher, _ = timm_teacher("test_resnet", mode="summary", loss_type="CS")
    packed = InlineTeacher(teacher, (2, 2), "cpu").submit(pixels(), 0)()
    assert packed.spatial is None and packed.named == {}


def test_what_it_occupies_is_one_place_a_worker_and_no_gpu_on_a_cpu(timm_teacher):
    service = {"num_gpus": 0.5, "num_cpus": 2.0, "replicas": 4}
    teacher, _ = timm_teacher("test_resnet", mode="summary", loss_type="CS", service=service)
    assert InlineTeacher(teacher, (2, 2), "cpu", workers=3).held() == Held(3, 0.0, 2.0)


def test_read_only_pixels(timm_teacher):
    """Ray's arrays cannot be written to; torch must neither warn nor write."""
    teacher, _ = timm_teacher("test_resnet", mode="summary", loss_type="CS")
    client, images = InlineTeacher(teacher, (2, 2), "cpu"), pixels()
    expected = client.submit(images, 0)().summary
    images.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(client.submit(images, 0)().summary, expected)
