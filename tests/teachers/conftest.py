"""Teachers of a few thousand weights, written to disk as a user would have them."""

from __future__ import annotations

import pytest
import timm
import torch
from safetensors.torch import save_file

from radioplat.spec.load import load_spec
from radioplat.spec.resolve import resolve_teachers
from radioplat.teachers.cache_file import SUFFIX
from radioplat.teachers.cache_store import FeatureStore


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
