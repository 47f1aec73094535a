"""An evaluation's teachers behind the feature cache: asked once for an image, and never answered otherwise."""

from __future__ import annotations

import pytest
import safetensors.torch
import timm
import torch

from radioplat.evaluation.models.cached_teachers import evaluation_key, remembering, teacher_encoders
from radioplat.evaluation.models.evaluated_model import teacher_encoder
from radioplat.models.features import Features
from radioplat.spec.loading.load import load_spec
from radioplat.spec.resolved.teacher import resolve_teachers
from radioplat.spec.schema.root import Spec
from radioplat.teachers.base.teacher import FrozenTeacher
from radioplat.teachers.cache.store import FeatureStore

CHANGES = (
    "distill.teacher[0].norm_mean=[0.4, 0.4, 0.4]",
    "distill.teacher[0].input_size=64",
    "teachers.a.precision=bf16",
)


@pytest.fixture
def spec_of(tmp_path):
    """spec_of(*overrides) -> a teacher of seeded weights behind a cache."""
    torch.manual_seed(0)
    path = tmp_path / "teacher.safetensors"
    safetensors.torch.save_file(timm.create_model("test_vit", num_classes=0).state_dict(), path)
    teacher = {
        "name": "a",
        "mode": "spatial",
        "loss_type": "MSE",
        "input_size": 32,
        "model": {"backbone": {"type": "test_vit"}},
        "pretrained_teacher_model_path": str(path),
    }

    def make(*overrides: str) -> Spec:
        cache = {"dir": str(tmp_path / "cache")}
        tree = {"distill": {"teacher": [teacher]}, "dataset": {"img_size": 32}, "feature_cache": cache}
        return load_spec(tree, list(overrides))

    return make


def images(seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 256, (3, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def test_an_image_is_asked_for_once(tmp_path):
    asked: list[int] = []

    def encode(pixels: torch.Tensor) -> Features:
        asked.append(len(pixels))
        mean = pixels.float().mean((2, 3)).to(torch.bfloat16).float()
        return Features(mean, mean[:, None, None] + torch.zeros(1, 2, 2, 1))

    store = FeatureStore(str(tmp_path), 10**8)
    through = remembering(encode, b"k" * 32, store)
    first, other = images(), images(1)
    expected = encode(first)
    for _ in range(2):
        found = through(first)
        assert torch.equal(found.summary, expected.summary) and torch.equal(found.spatial, expected.spatial)
    assert torch.equal(through(torch.stack([other[0], first[1]])).summary[1], expected.summary[1])
    assert asked == [3, 3, 1]
    remembering(encode, b"l" * 32, store)(first)  # another teacher
    assert asked == [3, 3, 1, 3]
    store.close()


def test_what_is_not_a_number_is_not_kept(tmp_path):
    asked: list[int] = []

    def encode(pixels: torch.Tensor) -> Features:
        asked.append(len(pixels))
        return Features(torch.full((len(pixels), 4), float("nan")), torch.zeros(len(pixels), 1, 1, 4))

    store = FeatureStore(str(tmp_path), 10**8)
    for _ in range(2):
        assert remembering(encode, b"k" * 32, store)(images()).summary.isnan().all()
    assert asked == [3, 3]
    store.close()


def test_the_same_features_with_and_without(spec_of, monkeypatch):
    """Both kinds are there, whatever the losses want; a second evaluation makes no pass."""
    spec = spec_of()
    teachers = resolve_teachers(spec)
    plain = teacher_encoder(FrozenTeacher(teachers[0]))(images())
    for again in range(2):
        if again:
            monkeypatch.setattr(FrozenTeacher, "forward", None)
        with teacher_encoders(spec, teachers, "cpu") as encoders:
            found = encoders["a"](images())
        assert torch.equal(found.summary, plain.summary) and torch.equal(found.spatial, plain.spatial)


def test_a_teacher_that_is_not_cached(spec_of, tmp_path):
    spec = spec_of("teachers.a.cache=false")
    with teacher_encoders(spec, resolve_teachers(spec), "cpu") as encoders:
        encoders["a"](images())
    assert not (tmp_path / "cache").exists()


def test_another_teacher_has_another_key(spec_of):
    fp32 = "teachers.a.precision=fp32"  # auto would be bf16 where the CPU has units for it
    changes = ((fp32,), *((fp32, change) for change in CHANGES))
    keys = [evaluation_key(resolve_teachers(spec_of(*change))[0], "cpu") for change in changes]
    assert len(set(keys)) == len(keys)
