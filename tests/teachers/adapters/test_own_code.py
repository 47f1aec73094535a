"""Models that bring their own code: TorchScript where the spec says so, and a class by its import path."""

from __future__ import annotations

import sys
import warnings

import pytest
import torch
from torch import nn

from radioplat.errors import SpecError, WeightsError
from radioplat.models.features import Features
from radioplat.models.weights.read import read_weights
from radioplat.teachers.base.teacher import FrozenTeacher, check_weights, describe

OWN = """
import torch
from torch import nn
from radioplat.models.features import Features

class Mine(nn.Module):
    stride, needs_multiple = 8, True
    mean, std, native_size = (0.1, 0.1, 0.1), (0.2, 0.2, 0.2), 64

    def __init__(self, width=4):
        super().__init__()
        self.conv = nn.Conv2d(3, width, 8, 8)

    def forward(self, images, wanted):
        x = self.conv(images)
        return Features(x.mean((2, 3)), x.permute(0, 2, 3, 1))

def function():
    pass
"""


class Patches(nn.Module):
    def __init__(self, form: str):
        super().__init__()
        self.conv, self.form = nn.Conv2d(3, 8, 16, 16), form

    def forward(self, x):
        x = self.conv(x)
        tokens = x.flatten(2).transpose(1, 2)
        if self.form == "map":
            return x
        if self.form == "pair":
            return x.amax((2, 3)), tokens
        return torch.cat([tokens[:, -1:], tokens], 1)


@pytest.fixture
def script(tmp_path):
    def make(form: str) -> tuple[str, nn.Module]:
        torch.manual_seed(0)
        model = Patches(form).eval()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.jit.save(torch.jit.trace(model, torch.zeros(1, 3, 64, 64)), str(tmp_path / "w.ts"))
        return str(tmp_path / "w.ts"), model

    return make


@pytest.mark.parametrize("form", ["map", "pair", "tokens"])
def test_torchscript(form, script, teacher, same_as, normalised):
    path, model = script(form)
    with torch.no_grad():
        spatial = model.conv(normalised()).permute(0, 2, 3, 1)
    summary = {"map": spatial.mean((1, 2)), "pair": spatial.amax((1, 2)), "tokens": spatial[:, -1, -1]}[form]
    options = {"stride": 16, "prefix_tokens": int(form == "tokens")}
    info = same_as(teacher("torchscript", path, options), summary, spatial)
    assert info.adapter == "torchscript" and info.wants.mean is None


def test_torchscript_only_where_it_is_named(script, teacher):
    path, _ = script("map")
    with pytest.raises(WeightsError, match="TorchScript") as caught:
        read_weights(path)
    assert "type: torchscript" in caught.value.problems[0].hint
    with pytest.raises(WeightsError, match="TorchScript"):
        FrozenTeacher(teacher("resnet18", path))
    with pytest.raises(SpecError, match="kwargs.stride"):
        describe(teacher("torchscript", path))
    with pytest.raises(SpecError, match="unknown: width"):
        describe(teacher("torchscript", path, {"stride": 16, "width": 3}))
    with pytest.raises(WeightsError, match="no such file"):
        describe(teacher("torchscript", path + "x", {"stride": 16}))


@pytest.fixture
def package(tmp_path, monkeypatch):
    (tmp_path / "my_teachers.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    yield "my_teachers"
    sys.modules.pop("my_teachers", None)


def test_a_class_of_the_user(package, write, teacher, same_as, normalised):
    conv = nn.Conv2d(3, 6, 8, 8)
    path = write({f"conv.{k}": v for k, v in conv.state_dict().items()})
    with torch.no_grad():
        out: Features = conv(normalised())
    own = teacher(f"{package}:Mine", path, {"width": 6})
    info = same_as(own, out.mean((2, 3)), out.permute(0, 2, 3, 1))
    assert (info.adapter, info.stride, info.wants.size, info.wants.mean) == ("class", 8, 64, (0.1, 0.1, 0.1))
    with pytest.raises(WeightsError, match="conv.weight is"):
        check_weights(teacher(f"{package}:Mine", path))
    for type, words in (
        ("no_such_package:X", "cannot import"),
        (f"{package}:Other", "cannot import"),
        (f"{package}:function", "no torch.nn.Module"),
    ):
        with pytest.raises(SpecError, match=words):
            describe(teacher(type, path))
    with pytest.raises(SpecError, match="refuses its arguments"):
        describe(teacher(f"{package}:Mine", path, {"depth": 6}))
