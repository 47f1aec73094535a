"""A user's own teacher class, by import path: a timm model in 20 lines teaches as the built-in adapter does."""

from __future__ import annotations

import sys

import pytest
import safetensors.torch

from radioplat.errors import SpecError
from radioplat.teachers.serving.teacher_runner import TeacherRunner

OWN = '''
import timm
from torch import nn

from radioplat.models.features import Features


class MyTeacher(nn.Module):
    """Any timm CNN: mean-pooled head features and the last map."""

    stride = 32
    mean, std, native_size = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5), 224

    def __init__(self, name: str) -> None:
        super().__init__()
        self.net = timm.create_model(name, num_classes=0)

    def forward(self, images, wanted):
        raw = self.net.forward_features(images)
        summary = self.net.forward_head(raw, pre_logits=True) if "summary" in wanted else None
        spatial = raw.permute(0, 2, 3, 1) if "spatial" in wanted else None
        return Features(summary, spatial)
'''
STEPS = "train.max_steps=2"


@pytest.fixture
def own_spec(make_spec, weights, tmp_path, monkeypatch):
    """own_spec(folder) -> the usual spec with the user's class in the place of ``lite0``'s adapter, same weights."""
    monkeypatch.syspath_prepend(tmp_path)
    tensors = safetensors.torch.load_file(weights["lite0"])
    tensors = {f"net.{name}": value for name, value in tensors.items() if not name.startswith("classifier.")}
    safetensors.torch.save_file(tensors, tmp_path / "own.safetensors")

    def make(folder: str, text: str = OWN) -> dict:
        (tmp_path / "my_teachers.py").write_text(text)
        sys.modules.pop("my_teachers", None)
        spec = make_spec(tmp_path / folder)
        teacher = spec["distill"]["teacher"][0]
        teacher["model"] = {"backbone": {"type": "my_teachers:MyTeacher", "kwargs": {"name": "tf_efficientnet_lite0"}}}
        teacher["pretrained_teacher_model_path"] = str(tmp_path / "own.safetensors")
        return spec

    yield make
    sys.modules.pop("my_teachers", None)


@pytest.fixture
def asked(monkeypatch):
    """Images that each teacher computed."""
    images: dict[str, int] = {}
    run = TeacherRunner.__call__

    def counted(self, pixels, grid, wanted):
        images[self.model.name] = images.get(self.model.name, 0) + len(pixels)
        return run(self, pixels, grid, wanted)

    monkeypatch.setattr(TeacherRunner, "__call__", counted)
    return images


def test_it_teaches_and_is_cached_as_the_built_in_adapter(make_spec, own_spec, distil, asked, tmp_path):
    built_in = distil(make_spec(tmp_path / "built_in"), STEPS)
    cache = f"feature_cache.dir={tmp_path / 'cache'}"
    still = ("dataset.augmentation.random_crop.enable=false", "dataset.augmentation.random_flip.enable=false")
    assert distil(own_spec("own"), STEPS).losses == built_in.losses
    first = distil(own_spec("first"), STEPS, cache, *still)
    asked.clear()
    assert distil(own_spec("again"), STEPS, cache, *still).losses == first.losses and asked == {}
    # Another text of the class is another teacher: nothing that the old one computed is served.
    text = OWN.replace("spatial = raw.permute", "spatial = 2 * raw.permute")
    edited = distil(own_spec("edited", text), STEPS, cache, *still)
    assert asked == {"lite0": 12} and edited.losses[1] != first.losses[1]


def test_wrong_outputs_end_the_run_before_it_begins(own_spec, distil):
    spec = own_spec("wrong", OWN.replace("raw.permute(0, 2, 3, 1)", "raw"))
    with pytest.raises(SpecError, match=r"distill\.teacher\[0\]\.model\.backbone\.type: MyTeacher: spatial"):
        distil(spec, STEPS)
