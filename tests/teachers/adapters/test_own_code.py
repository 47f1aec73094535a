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
from radioplat.teachers.cache.key import teacher_key
from radioplat.teachers.serving.pool import fingerprint

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

class Wrong(Mine):
    logits_dim = 7

    def __init__(self, what="none"):
        super().__init__()
        self.what = what
        if what == "values":
            self.conv.weight.sum().item()
        if what == "no stride":
            self.stride = None

    def forward(self, images, wanted):
        features = super().forward(images, wanted)
        if self.what == "tuple":
            return features.summary, features.spatial
        if self.what == "values in forward":
            features.summary.sum().item()
        if self.what == "channels first":
            features.spatial = features.spatial.permute(0, 3, 1, 2)
        if self.what == "no map":
            features.spatial = None
        if self.what == "tokens":
            features.spatial = features.spatial.flatten(1, 2)
        if self.what == "one image":
            features.summary = features.summary[:1].expand(3, -1)
        if self.what == "integers":
            features.summary = features.summary.long()
        if self.what == "logits":
            features.named["logits"] = features.summary
        return features

class NoForward(nn.Module):
    stride = 8

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
    assert info.adapter == "torchscript" and info.native.mean is None


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
    assert (info.adapter, info.stride, info.native.size, info.native.mean) == ("class", 8, 64, (0.1, 0.1, 0.1))
    with pytest.raises(WeightsError, match="conv.weight is"):
        check_weights(teacher(f"{package}:Mine", path))
    for type, words in (
        ("no_such_package:X", "cannot import"),
        (f"{package}:Other", "cannot import"),
        (f"{package}:function", "no torch.nn.Module"),
    ):
        with pytest.raises(SpecError, match=words):
            describe(teacher(type, path))
    with pytest.raises(SpecError, match="cannot be built with these arguments"):
        describe(teacher(f"{package}:Mine", path, {"depth": 6}))


def test_an_edited_class_is_another_teacher_to_caches_and_named_pools(package, teacher, tmp_path):
    own, built_in = teacher(f"{package}:Mine", str(tmp_path)), teacher("resnet18", str(tmp_path))
    ids = [(teacher_key(t, (2, 2), "fp32", "w"), fingerprint(t)["code"]) for t in (own, built_in)]
    (tmp_path / "my_teachers.py").write_text(OWN.replace("x.mean", "x.amax"))
    edited = [(teacher_key(t, (2, 2), "fp32", "w"), fingerprint(t)["code"]) for t in (own, built_in)]
    assert edited[0][0] != ids[0][0] and edited[0][1] != ids[0][1] and edited[1] == ids[1]


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("tuple", "Wrong: forward returned tuple, not Features"),
        ("values in forward", "Wrong: forward of images [1, 3, 64, 64] raised RuntimeError: Tensor.item()"),
        (
            "channels first",
            "Wrong: spatial of images of 64 x 64 pixels has 4 x 8 positions, and the stride 8 means 8 x 8",
        ),
        ("no map", "Wrong: forward returned no spatial, where a tensor [1, *, *, *] was wanted"),
        ("tokens", "Wrong: spatial has the shape [1, 64, 4], not [1, *, *, *]"),
        ("one image", "Wrong: summary has the shape [3, 4], not [1, *]"),
        ("integers", "Wrong: summary is torch.int64, not floating point"),
        ("no stride", "Wrong has no positive integer `stride`"),
    ],
)
def test_a_users_class_with_wrong_outputs_is_named(what, message, package, teacher, tmp_path):
    with pytest.raises(SpecError) as caught:
        describe(teacher(f"{package}:Wrong", str(tmp_path), {"what": what}))
    (problem,) = caught.value.problems
    assert problem.where == "distill.teacher[0].model.backbone.type" and problem.message.startswith(message)


def test_a_users_class_that_cannot_be_built_is_named(package, teacher, tmp_path):
    with pytest.raises(SpecError, match="cannot be built with these arguments") as caught:
        describe(teacher(f"{package}:Wrong", str(tmp_path), {"what": "values"}))
    assert caught.value.problems[0].where == "distill.teacher[0].model.backbone.kwargs"
    assert "meta device" in caught.value.problems[0].hint
    with pytest.raises(SpecError, match="NoForward has no method forward"):
        describe(teacher(f"{package}:NoForward", str(tmp_path)))
    (tmp_path / "broken_teacher.py").write_text("1 / 0")
    with pytest.raises(SpecError, match="cannot import broken_teacher:X: ZeroDivisionError: division by zero"):
        describe(teacher("broken_teacher:X", str(tmp_path)))


@pytest.mark.parametrize(("what", "message"), [("no logits", "returned no logits"), ("logits", "not [1, 7]")])
def test_a_users_class_with_wrong_logits_is_named(what, message, package, teacher, tmp_path):
    with pytest.raises(SpecError) as caught:
        describe(teacher(f"{package}:Wrong", str(tmp_path), {"what": what}, mode="logits", loss_type="KL"))
    assert message in caught.value.problems[0].message
