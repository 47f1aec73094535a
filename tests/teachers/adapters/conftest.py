"""Real architectures of a few thousand weights, written to disk in the layouts that the world uses."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

from radioplat.spec.loading.load import load_spec
from radioplat.spec.resolved.teacher import resolve_teachers
from radioplat.teachers.adapters.registry import adapter_class
from radioplat.teachers.base.teacher import FrozenTeacher, check_weights, describe

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.3, 0.4)
BOTH = frozenset({"summary", "spatial"})


@pytest.fixture
def write(tmp_path):
    """write(tensors, name) -> path; ``.safetensors`` or a pickle by the name's end."""

    def make(tensors: dict, name: str = "w.safetensors") -> str:
        path = tmp_path / name
        if name.endswith(".safetensors"):
            save_file({k: v.contiguous().clone() for k, v in tensors.items()}, path)
        else:
            torch.save(tensors, path)
        return str(path)

    return make


@pytest.fixture
def teacher():
    """teacher(type, weights, kwargs, size) -> resolved teacher in fp32."""

    def make(type: str | None, weights: str, kwargs: dict | None = None, size: int = 64, **more):
        entry = {
            "name": "t",
            "mode": "combo",
            "loss_type": "MSE",
            "model": {"backbone": {"type": type, "kwargs": kwargs or {}}},
            "pretrained_teacher_model_path": weights,
            "input_size": size,
            "norm_mean": list(MEAN),
            "norm_std": list(STD),
            **more,
        }
        spec = load_spec({"distill": {"teacher": [entry]}, "teachers": {"t": {"precision": "fp32"}}})
        return resolve_teachers(spec)[0]

    return make


def _pixels(size: int = 64) -> torch.Tensor:
    return torch.randint(0, 256, (2, 3, size, size), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def pixels():
    """pixels(size) -> uint8 ``[2, 3, size, size]``."""
    return _pixels


@pytest.fixture
def normalised():
    """normalised(size) -> the same images as the teachers of this folder see them."""

    def make(size: int = 64) -> torch.Tensor:
        mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (MEAN, STD))
        return (_pixels(size) / 255 - mean) / std

    return make


@pytest.fixture
def same_as():
    """same_as(teacher, summary, spatial): described, checked and loaded, it gives these features of the test images."""

    def compare(teacher, summary: torch.Tensor, spatial: torch.Tensor):
        info = describe(teacher)
        check_weights(teacher)
        found = FrozenTeacher(teacher)(_pixels(teacher.input_size), BOTH)
        assert found.summary.shape == (2, info.summary_dim) and found.spatial.shape == (2, *info.grid, info.spatial_dim)
        for ours, own in ((found.summary, summary), (found.spatial, spatial)):
            torch.testing.assert_close(ours.float(), own.detach().float(), rtol=1e-2, atol=1e-2 * float(own.std()))
        return info

    return compare


@pytest.fixture
def exactly():
    """exactly(teacher, images, summary, spatial): described and loaded, it gives these fp32 features of ``images``."""

    def compare(teacher, images: torch.Tensor, summary: torch.Tensor, spatial: torch.Tensor):
        info = describe(teacher)
        kind = adapter_class(teacher)
        model = kind.build(teacher)
        model.load(teacher)
        with torch.no_grad():
            found = model.eval()(images)
        for ours, own in ((found.summary, summary), (found.spatial, spatial)):
            torch.testing.assert_close(ours, own.detach(), rtol=1e-5, atol=1e-5 * float(own.std()))
        return info

    return compare
