"""Teachers of a few thousand weights, written to disk as a user would have them."""

from __future__ import annotations

from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file

from radioplat.spec.loading.load import load_spec
from radioplat.spec.resolved.teacher import resolve_teachers
from radioplat.teachers.cache.file import SUFFIX
from radioplat.teachers.cache.store import FeatureStore
from radioplat.teachers.upsamplers.featsharp.checkpoint import save_upsampler
from radioplat.teachers.upsamplers.featsharp.featsharp import FeatSharp, FeatSharpConfig


@pytest.fixture
def timm_teacher(tmp_path):
    """timm_teacher(name, size=64, classes=0, **teacher) -> (resolved teacher, timm's own model with its weights)."""

    def make(name: str, size: int = 64, classes: int = 0, **teacher):
        torch.manual_seed(0)
        model = timm.create_model(name, num_classes=classes).eval()
        path = tmp_path / f"{name}.safetensors"
        save_file(model.state_dict(), path)
        backbone = {"type": name, "output_dim": [classes] if classes else []}
        entry = {"model": {"backbone": backbone}, "pretrained_teacher_model_path": str(path), "input_size": size}
        return resolved(**entry, **teacher), model

    return make


def resolved(precision: str = "fp32", service: dict | None = None, **teacher):
    services = {"t": {"precision": precision, **(service or {})}}
    spec = load_spec({"distill": {"teacher": [{"name": "t", **teacher}]}, "teachers": services})
    return resolve_teachers(spec)[0]


@pytest.fixture
def resolve():
    """resolve(**fields of one teacher) -> its resolved form."""
    return resolved


@pytest.fixture
def save_featsharp(tmp_path):
    """save_featsharp(seed=0) -> (an upsampler for test_vit at 64 pixels whose weights do something, its one file)."""

    def make(seed: int = 0) -> tuple[FeatSharp, Path]:
        torch.manual_seed(seed)
        model = FeatSharp(FeatSharpConfig(64, 2, (4, 4), width=16, heads=2, window=3))
        path = tmp_path / "up.safetensors"
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
            model.scale.fill_(2.0)
        save_upsampler(model, path, teacher="test_vit")
        return model, path

    return make


@pytest.fixture
def upsampled(timm_teacher, save_featsharp):
    """upsampled(**teacher) -> test_vit at 64 pixels with the upsampler of seed 0."""

    def make(**teacher):
        path = save_featsharp()[1]
        fields = {"mode": "combo", "loss_type": "MSE", "adaptor": "featsharp", "upsample_factor": 2}
        return timm_teacher("test_vit", upsampler_checkpoint=str(path), **fields | teacher)[0]

    return make


@pytest.fixture
def open_store(tmp_path):
    """open_store(max_bytes, folder, say) -> a feature store, by default on ``files``' folder; closed at the end."""
    opened = []

    def make(max_bytes: int = 10**9, folder: str | None = None, say=None) -> FeatureStore:
        opened.append(FeatureStore(folder or str(tmp_path / "cache"), max_bytes, say))
        return opened[-1]

    yield make
    for store in opened:
        store.close()


@pytest.fixture
def files(tmp_path):
    """files() -> the files of ``open_store``'s folder."""
    return lambda: sorted((tmp_path / "cache").glob(f"*{SUFFIX}"))
