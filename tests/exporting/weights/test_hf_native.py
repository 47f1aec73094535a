"""The folder for transformers' own ``RadioModel``: opened by that class without code, and by our readers."""

from __future__ import annotations

import json

import pytest
import torch

from radioplat.errors import EngineError, WeightsError
from radioplat.exporting.weights.export import export_weights, format_problems
from radioplat.models.pretrained.initial_weights import architecture_of, start_student
from radioplat.models.student.student import Student
from radioplat.spec.loading.load import load_spec
from radioplat.spec.resolved.teacher import resolve_teachers
from radioplat.spec.schema.export import ExportFormat
from radioplat.teachers.adapters.registry import adapter_class

VIT = {"embed_dim": 32, "depth": 2, "num_heads": 2, "final_norm": False}
NATIVE = ExportFormat.hf_native


@pytest.fixture
def native_model():
    """native_model(folder) -> the model that transformers' own class makes of it; every tensor has its place."""
    transformers = pytest.importorskip("transformers", minversion="5.23")

    def load(folder):
        model, info = transformers.AutoModel.from_pretrained(folder, output_loading_info=True)
        assert type(model) is transformers.RadioModel
        assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
        return model.eval()

    return load


def assert_same(model, student, pixels):
    with torch.no_grad():
        said, features = model(pixels), student(pixels)
    for theirs, own in ((said.summary, features.summary), (said.features, features.spatial.flatten(1, 2))):
        assert theirs.shape == own.shape
        assert float((theirs - own).abs().max()) <= 1e-4 * float(own.abs().max())


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"cpe_max_size": 48},
        {"num_registers": 0, "cpe_max_size": 100},
        {"heads": (), "num_class_tokens": 2},
        {"kwargs": VIT | {"qkv_bias": False, "mlp_ratio": 2.5, "drop_path_rate": 0.1}},
        {"type": "c_radio_v4_vit_base_patch8", "kwargs": VIT, "cpe_max_size": None, "num_registers": None},
    ],
    ids=lambda change: ",".join(change) or "as is",
)
def test_the_class_says_what_the_student_says(change, radio_student, image_batch, native_model, tmp_path):
    student = radio_student(**{"kwargs": VIT} | change)
    report = export_weights(student, NATIVE, tmp_path / "native", height=48, width=24)
    model = native_model(tmp_path / "native")
    for size in ((48, 48), (64, 64), (24, 72), (80, 32), (128, 96)):
        assert_same(model, student, image_batch(*size))
    assert report.adaptors == [] and not list((tmp_path / "native").glob("*.py"))
    assert bool(student.head_names) == any("clip, sam, dino are left out" in note for note in report.notes)


def test_layer_scale_is_in_the_layer_before_it(radio_student, image_batch, native_model, tmp_path):
    student = radio_student(kwargs=VIT | {"init_values": 1e-2})
    assert "blocks.0.ls1.gamma" in student.backbone.state_dict()
    export_weights(student, NATIVE, tmp_path / "native", height=48, width=48)
    model = native_model(tmp_path / "native")
    assert_same(model, student, image_batch(24, 72))
    assert set(model.encoder.layer[0].layer_scale1.lambda1.tolist()) == {1.0}


def as_teacher(folder):
    entry = {
        "name": "t",
        "mode": "combo",
        "loss_type": "MSE",
        "pretrained_teacher_model_path": str(folder),
        "input_size": 48,
    }
    resolved = resolve_teachers(load_spec({"distill": {"teacher": [entry]}}))[0]
    teacher = adapter_class(resolved).build(resolved).eval()
    teacher.load(resolved)
    return teacher


def test_a_folder_that_transformers_saves_is_a_teacher_and_a_start(radio_student, image_batch, native_model, tmp_path):
    """With LayerScale that is not 1, as fine-tuning there may leave it."""
    student = radio_student(kwargs=VIT)
    export_weights(student, NATIVE, tmp_path / "native", height=48, width=48)
    model = native_model(tmp_path / "native")
    with torch.no_grad():
        for layer in model.encoder.layer:
            layer.layer_scale1.lambda1.uniform_(0.5, 1.5)
            layer.layer_scale2.lambda1.uniform_(0.5, 1.5)
    model.save_pretrained(tmp_path / "saved")
    pixels = image_batch(24, 72)
    with torch.no_grad():
        said = model(pixels)
        found = as_teacher(tmp_path / "saved")((pixels - student.mean) / student.std)
    torch.testing.assert_close(found.summary, said.summary, rtol=0, atol=1e-4)  # of class tokens 0 and 2
    torch.testing.assert_close(found.spatial.flatten(1, 2), said.features, rtol=0, atol=1e-4)

    folder = str(tmp_path / "saved")
    known = architecture_of(folder, "x")
    started = start_student(load_spec(None, [f"train.pretrained_model_path={folder}"]), known).eval()
    with torch.no_grad():
        features = started.backbone((pixels - student.mean) / student.std)
    torch.testing.assert_close(features.spatial.flatten(1, 2), said.features, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, "no norm after the last block"),
        ({"kwargs": VIT | {"qk_norm": True}}, "no setting like model.backbone.kwargs.qk_norm"),
        ({"kwargs": VIT | {"act_layer": "gelu_tanh"}}, "no setting like model.backbone.kwargs.act_layer"),
        ({"type": "test_resnet", "kwargs": {}, "heads": ()}, "cannot be a RADIO checkpoint"),
    ],
)
def test_what_the_class_cannot_compute_is_refused_before_the_run(change, why, radio_student, tmp_path):
    student = radio_student(**change)
    (problem,) = format_problems(Student(student.architecture).to("meta"), NATIVE, [])
    assert problem.where == "export.format" and why in problem.message
    with pytest.raises(EngineError, match=why):
        export_weights(student, NATIVE, tmp_path / "native", height=48, width=48)
    assert not (tmp_path / "native").exists()


def test_heads_are_refused_if_they_are_asked_for(radio_student):
    (problem,) = format_problems(radio_student(kwargs=VIT), NATIVE, ["clip"])
    assert problem.where == "export.adaptors" and "no adaptors" in problem.message


def test_settings_that_our_vit_lacks_are_refused(radio_student, tmp_path):
    export_weights(radio_student(kwargs=VIT), NATIVE, tmp_path / "native", height=48, width=48)
    config = json.loads((tmp_path / "native" / "config.json").read_text())
    (tmp_path / "native" / "config.json").write_text(json.dumps(config | {"use_swiglu_ffn": True}))
    with pytest.raises(WeightsError, match="RadioModel with use_swiglu_ffn=True"):
        as_teacher(tmp_path / "native")
