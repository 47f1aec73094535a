"""Students and detectors alike: what both have, one way to save and to open them, and no branch elsewhere."""

from __future__ import annotations

import ast
import inspect
import json
from pathlib import Path

import pytest
import torch
from torch import nn

import radioplat
from radioplat.errors import WeightsError
from radioplat.models.detectors.base import Detector, DetectorArchitecture
from radioplat.models.model_kind import ModelKind
from radioplat.models.quantized.architecture import LayerFormats, Quantization
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.models.vision_model import (
    FORMATS,
    VisionModel,
    model_kind,
    open_architecture,
    open_model,
    save_model,
    weight_files,
)
from radioplat.models.weights.model_format import Format

pytest.importorskip("transformers")

DINO = dict(
    d_model=32, num_queries=20, encoder_layers=1, decoder_layers=2, encoder_ffn_dim=32, decoder_ffn_dim=32,
    encoder_attention_heads=2, decoder_attention_heads=2, num_denoising=10,
)  # fmt: skip
STEM = "backbone.model.conv1.0"


def student() -> Student:
    return Student(StudentArchitecture("resnet10t", img_size=64)).eval()


def detector() -> Detector:
    return Detector(DetectorArchitecture(StudentArchitecture("resnet10t", img_size=64), 3, "dino", DINO)).eval()


@pytest.fixture(scope="module", params=[student, detector], ids=["student", "detector"])
def model(request) -> VisionModel:
    torch.manual_seed(0)
    return request.param()


@pytest.fixture
def saved(model, tmp_path) -> Path:
    save_model(model, tmp_path / "there" / "model")
    return tmp_path / "there" / "model"


def test_each_has_all_that_callers_ask_of_a_model(model):
    assert not [name for name, _ in inspect.getmembers(VisionModel) if name[0] != "_" and not hasattr(model, name)]
    assert not [name for name in VisionModel.__annotations__ if not hasattr(model, name)]
    assert model.architecture.img_size == 64
    assert model.get_submodule(model.backbone_name) is model.backbone
    assert model.architecture.student.type == "resnet10t"


def test_what_is_saved_is_opened_by_its_kind(model, saved):
    assert model_kind(saved) is model.model_kind
    assert open_architecture(saved) == model.architecture
    assert sorted(weight_files(saved)) == sorted(saved.iterdir())
    again = open_model(saved)
    assert type(again) is type(model) and not again.training
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in model.state_dict().items())


def test_a_probe_is_channels_last_and_shows_a_change(model):
    images = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        probe = dict(model.feature_probe(images))
        first = next(iter(model.backbone.parameters()))
        first.mul_(1.5)
        try:
            changed = dict(model.feature_probe(images))
        finally:
            first.div_(1.5)
    assert probe.keys() == changed.keys()
    assert all(not torch.equal(tensor, changed[kind]) for kind, tensor in probe.items())
    spatial = probe.get("spatial", probe.get("maps"))
    assert spatial.shape[:-1] == (2, 2, 2) and spatial.shape[-1] == model.backbone.spatial_dim


def test_quantized_layers_are_named_as_the_model_names_them():
    linear = next(n for n, m in detector().named_modules() if n.startswith("detr.") and type(m) is nn.Linear)
    own, whole = Quantization({STEM: LayerFormats()}), Quantization({linear: LayerFormats()})
    backbone = StudentArchitecture("resnet10t", img_size=64, quantized=own)
    assert StudentArchitecture("resnet10t").quantizations == {}
    assert backbone.quantizations == {"": own}
    architecture = DetectorArchitecture(backbone, 3, "dino", DINO, quantized=whole)
    assert architecture.quantizations == {"student.": own, "": whole}
    made, parts = Detector(architecture), architecture.quantizations.items()
    for name in (f"{prefix}{layer}" for prefix, how in parts for layer in how.layers):
        assert hasattr(made.get_submodule(name), "weight_quantizer")


def test_what_is_no_model_or_torn_is_named(model, saved, tmp_path):
    assert model_kind(tmp_path) is None and model_kind(tmp_path / "nothing.safetensors") is None
    with pytest.raises(WeightsError, match="is not a checkpoint folder") as raised:
        open_model(tmp_path, "evaluate.checkpoint")
    assert raised.value.problems[0].where == "evaluate.checkpoint"
    for file in saved.iterdir():
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    for open_it in (open_model, open_architecture):
        with pytest.raises(WeightsError) as raised:
            open_it(saved, "evaluate.checkpoint")
        assert str(saved) in str(raised.value) and raised.value.problems[0].where == "evaluate.checkpoint"
    with pytest.raises(WeightsError):
        open_model(weight_files(saved)[0])


class ToyForm(str):
    """The architecture of a third kind of model."""

    def to_json(self):
        return json.dumps(self)

    @classmethod
    def from_json(cls, text):
        return cls(json.loads(text))


class Toy(nn.Module):
    """A third kind of model."""

    def __init__(self, architecture=None, where="") -> None:
        super().__init__()
        self.model_kind, self.architecture = "toy", architecture or ToyForm("a toy")
        self.layer = nn.Linear(2, 2)


def test_a_further_kind_is_one_entry(monkeypatch, tmp_path):
    form = Format({"toy.safetensors": ""}, "radioplat.toy", ToyForm, Toy)
    monkeypatch.setitem(FORMATS, "toy", form)
    toy = Toy()
    save_model(toy, tmp_path)
    assert model_kind(tmp_path) == "toy" and open_architecture(tmp_path) == "a toy"
    assert torch.equal(open_model(tmp_path).layer.weight, toy.layer.weight)
    assert weight_files(tmp_path) == [tmp_path / "toy.safetensors"]
    save_model(student(), tmp_path / "other")
    assert model_kind(tmp_path / "other") is ModelKind.student


def test_nothing_but_the_models_asks_which_class_a_model_is():
    root, asked = Path(radioplat.__file__).parent, []
    for file in root.rglob("*.py"):
        if file.is_relative_to(root / "models"):
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
                names = {n.id for n in ast.walk(node.args[1]) if isinstance(n, ast.Name)}
                if names & {"Detector", "DetectorArchitecture"}:
                    asked.append(f"{file.relative_to(root)}:{node.lineno}")
    assert not asked
