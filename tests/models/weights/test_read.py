"""Checkpoints from elsewhere: read without running anything, refused with the reason."""

from __future__ import annotations

import argparse
import collections
import pickle

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from radioplat.cli.main import main
from radioplat.errors import WeightsError
from radioplat.models.weights.read import fit, load_into, read_weights

W = {"a.weight": torch.arange(6.0).reshape(2, 3), "a.bias": torch.ones(2)}


class Custom:
    """Stands for any class that a checkpoint may hold."""


def refused(path, where="distill.teacher[0].pretrained_teacher_model_path") -> str:
    with pytest.raises(WeightsError) as caught:
        read_weights(path, where)
    assert caught.value.problems[0].where == where and str(path) in str(caught.value)
    return str(caught.value)


def same(found: dict[str, torch.Tensor]) -> bool:
    return set(found) == set(W) and all(torch.equal(found[k], W[k]) for k in W)


@pytest.mark.parametrize(
    "content",
    [
        W,
        collections.OrderedDict(W),
        {"state_dict": W},
        {"model": {"state_dict": W}},
        {"epoch": 3, "model": W},
        {"model": W, "best_accuracy": torch.tensor(0.9)},
        {f"module.{k}": v for k, v in W.items()},
        {"state_dict": {f"_orig_mod.module.{k}": v for k, v in W.items()}},
        {"state_dict": W, "args": argparse.Namespace(model="vit", teachers=[{"name": "clip"}])},
    ],
    ids=[
        "plain",
        "ordered",
        "state_dict",
        "nested",
        "beside numbers",
        "beside tensors",
        "ddp",
        "compiled",
        "namespace",
    ],
)
def test_forms_of_a_pickle(content, tmp_path):
    torch.save(content, tmp_path / "w.pth")
    assert same(read_weights(tmp_path / "w.pth"))


def test_old_zipless_pickle(tmp_path):
    torch.save(W, tmp_path / "w.pt", _use_new_zipfile_serialization=False)
    assert same(read_weights(tmp_path / "w.pt"))


def test_safetensors_and_a_checkpoint_folder(tmp_path):
    save_file(W, tmp_path / "student.safetensors")
    assert same(read_weights(tmp_path / "student.safetensors")) and same(read_weights(tmp_path))


def test_missing_file(tmp_path):
    assert "radioplat weights fetch hf:" in refused(tmp_path / "no.pth")
    assert "student.safetensors" in refused(tmp_path)


@pytest.mark.parametrize("suffix", ["safetensors", "pth"])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.95])
def test_torn_file(tmp_path, suffix, share):
    path = tmp_path / f"w.{suffix}"
    (save_file if suffix == "safetensors" else torch.save)(W, path)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    assert "not a whole" in refused(path)


def test_what_is_no_checkpoint_at_all(tmp_path):
    for suffix in ("safetensors", "pth"):
        (tmp_path / f"w.{suffix}").write_text("<html>404</html>" * 9)
        refused(tmp_path / f"w.{suffix}")


@pytest.mark.parametrize("name", ["picture.jpg", "picture.png", "picture.safetensors"])
def test_an_image_is_no_file_of_weights(name, tmp_path, capsys):
    kind = {"jpg": "JPEG", "png": "PNG", "safetensors": "WEBP"}[name.partition(".")[2]]
    Image.new("RGB", (40, 30), "teal").save(tmp_path / name, kind)
    assert f"{name} is an image ({kind}), not a file of weights" in refused(tmp_path / name)
    assert main(["weights", "inspect", str(tmp_path / name)]) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "is an image" in said and "Name a .safetensors" in said and "Traceback" not in said


def test_a_pickled_class_is_refused_by_name(tmp_path):
    torch.save({"model": W, "config": Custom()}, tmp_path / "w.pth")
    assert "Custom" in refused(tmp_path / "w.pth")
    torch.save({"hook": print}, tmp_path / "f.pth")
    assert "print" in refused(tmp_path / "f.pth")


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_reading_runs_nothing(tmp_path):
    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "sprung"), "w"))

    torch.save(Trap(), tmp_path / "w.pth")
    refused(tmp_path / "w.pth")
    (tmp_path / "raw.pth").write_bytes(pickle.dumps(Trap()))
    refused(tmp_path / "raw.pth")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("content", [[1, 2], {"epoch": 3}, torch.ones(2), {}], ids=str)
def test_no_tensors_by_name(content, tmp_path):
    torch.save(content, tmp_path / "w.pth")
    refused(tmp_path / "w.pth")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_tensor_that_is_not_finite_is_named(value, tmp_path):
    save_file({**W, "b.weight": torch.tensor([1.0, value])}, tmp_path / "w.safetensors")
    assert "'b.weight'" in refused(tmp_path / "w.safetensors")


class TestFit:
    @pytest.fixture
    def module(self):
        return nn.ModuleDict({"a": nn.Linear(3, 2)})

    def test_exact(self, module):
        load_into(module, W, "w.pth", "x")
        assert same(module.state_dict())

    @pytest.mark.parametrize("prefix", ["backbone.", "model.", "encoder.", "model.backbone.", "model.net.body."])
    def test_a_backbone_inside_a_larger_model(self, module, prefix):
        beside = {"decoder.weight": torch.ones(1), "neck.a.bias": torch.ones(1)}
        assert same(fit(module, {**{prefix + k: v for k, v in W.items()}, **beside}, "w.pth", "x"))

    def test_two_backbones_in_one_file(self, module):
        both = {f"{prefix}.{k}": v for prefix in ("student", "teacher") for k, v in W.items()}
        with pytest.raises(WeightsError, match="more than once: student., teacher."):
            fit(module, both, "w.pth", "x")
        assert same(fit(module, both | {f"backbone.{k}": v for k, v in W.items()}, "w.pth", "x"))

    @pytest.mark.parametrize(
        ("tensors", "words"),
        [
            ({"a.weight": W["a.weight"]}, ["missing: a.bias"]),
            ({**W, "z": torch.ones(1)}, ["left over: z"]),
            ({**W, "a.weight": torch.ones(3, 2)}, ["a.weight is [3, 2] there and [2, 3] here"]),
            ({f"layer.{i}": torch.ones(1) for i in range(9)}, ["missing: a.weight, a.bias", "layer.0", "and 6 more"]),
        ],
    )
    def test_another_architecture_is_named(self, module, tensors, words):
        with pytest.raises(WeightsError, match="w.pth") as caught:
            fit(module, tensors, "w.pth", "distill.teacher[0].x")
        assert all(word in str(caught.value) for word in words)
        assert caught.value.problems[0].where == "distill.teacher[0].x"

    def test_left_over_classifier(self, module):
        assert same(fit(module, {**W, "head.weight": torch.ones(1)}, "w", "x", ignore=("head.",)))
        with pytest.raises(WeightsError, match="headroom"):
            fit(module, {**W, "headroom": torch.ones(1)}, "w", "x", ignore=("head.",))

    @pytest.mark.parametrize("theirs", [{}, {"head.weight": torch.ones(9, 2), "head.bias": torch.ones(9)}])
    def test_a_fresh_classifier_keeps_its_start(self, theirs):
        module = nn.ModuleDict({"a": nn.Linear(3, 2), "head": nn.Linear(2, 4)})
        start = module["head"].weight.clone()
        module.load_state_dict(fit(module, {**W, **theirs}, "w", "x", fresh=("head.",)), strict=False)
        assert torch.equal(module["head"].weight, start) and torch.equal(module["a"].weight, W["a.weight"])

    def test_a_module_without_memory(self):
        with torch.device("meta"):
            module = nn.ModuleDict({"a": nn.Linear(3, 2)})
        assert same(fit(module, W, "w", "x"))
