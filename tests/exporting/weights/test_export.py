"""``export.format`` from the spec to files, and what is refused."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors import safe_open

import radioplat
from radioplat.cli.main import main
from radioplat.design.models import design_models
from radioplat.errors import EngineError, SpecError
from radioplat.exporting.weights.export import export_weights
from radioplat.models.student.checkpoint import is_checkpoint, save_student
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.spec.checks.tasks.training_run import check
from radioplat.spec.loading.load import load_spec
from radioplat.spec.schema.export import AdaptorTypes, ExportFormat
from radioplat.tasks.export.export import export

FORMATS = [f for f in ExportFormat if f is not ExportFormat.onnx]


@pytest.fixture
def spec(radio_student, tmp_path):
    """spec(*overrides) of results that hold a trained student."""
    folder = tmp_path / "results" / "distill" / "model_epoch_000"
    folder.mkdir(parents=True)
    student = radio_student(kwargs={"embed_dim": 32, "depth": 2, "num_heads": 2, "final_norm": False})
    save_student(student, student.state_dict(), folder)
    (folder.parent / "model_latest").symlink_to(folder.name)
    return lambda *overrides: load_spec({"results_dir": str(tmp_path / "results")}, overrides)


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_from_the_spec(form, spec, tmp_path):
    report = export(spec(f"export.format={form.value}"))
    assert report.format is form and report.path.parent == tmp_path / "results" / "export" and report.bytes > 1000
    assert report.max_abs_error < 1e-4 and report.path.name in report.load
    headless = form in (ExportFormat.timm, ExportFormat.hf_native)
    assert report.adaptors == ([] if headless else ["clip", "sam", "dino"])
    status = (tmp_path / "results" / "export" / "status.json").read_text().splitlines()
    assert json.loads(status[-1])["status"] == "SUCCESS"
    again = export(spec(f"export.format={form.value}", "export.input_height=24"))  # replaces what it wrote
    assert again.path == report.path
    assert not [p for p in report.path.parent.iterdir() if p.name.startswith(".")]


def test_the_command_says_how_to_open_it(spec, tmp_path, capsys):
    path = tmp_path / "x.pth"
    (tmp_path / "e.yaml").write_text(f"results_dir: {tmp_path / 'results'}\n")
    assert main(["export", "-e", str(tmp_path / "e.yaml"), "export.format=radio", f"export.output={path}"]) == 0
    said = "".join(capsys.readouterr().out.split())
    assert "heads:clip,sam,dino" in said and "'NVlabs/RADIO','radio_model'" in said and path.is_file()


def test_one_file_opens_as_the_student(radio_student, image_batch, tmp_path):
    student, path = radio_student(), tmp_path / "s.safetensors"
    export_weights(student, ExportFormat.safetensors, path, height=48, width=48)
    with safe_open(path, "pt") as opened:
        assert json.loads(opened.metadata()["mean"]) == [0.4, 0.5, 0.6] and opened.metadata()["input_size"] == "48"
    again = radioplat.load_student(path)
    assert is_checkpoint(path) and again.architecture == student.architecture
    assert all(torch.equal(v, student.state_dict()[k]) for k, v in again.state_dict().items())
    report = export_weights(student, ExportFormat.safetensors, path, height=48, width=48, adaptors=["dino"])
    assert radioplat.load_student(path).head_names == ["dino"] and report.notes
    with torch.no_grad():
        mine, theirs = (s.head("dino", s(image_batch())) for s in (student, radioplat.load_student(path)))
    assert torch.equal(mine.summary, theirs.summary)


def test_places_that_are_not_overwritten(radio_student, tmp_path):
    student = radio_student()
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.txt").write_text("mine")
    for form, path, why in (
        (ExportFormat.hf, tmp_path / "photos", "not an earlier export"),
        (ExportFormat.hf, tmp_path / "photos" / "a.txt", "writes a folder"),
        (ExportFormat.radio, tmp_path / "photos", "not a file name"),
        (ExportFormat.radio, tmp_path / "photos" / "a.txt" / "x.pth", "cannot write"),
    ):
        with pytest.raises(EngineError, match=why):
            export_weights(student, form, path, height=48, width=48)
    assert (tmp_path / "photos" / "a.txt").read_text() == "mine"


def test_sizes_and_students_that_do_not_fit(radio_student, tmp_path):
    with pytest.raises(EngineError, match="20 x 48 pixels are not multiples of the patch size 8"):
        export_weights(radio_student(), ExportFormat.timm, tmp_path / "x", height=20, width=48)
    with pytest.raises(EngineError, match="one class token"):
        export_weights(
            radio_student(), ExportFormat.timm, tmp_path / "x", height=48, width=48, adaptors=["clip", "sam"]
        )
    cnn = radio_student(type="test_resnet", kwargs={}, heads=())
    for form in (ExportFormat.radio, ExportFormat.hf):
        with pytest.raises(EngineError, match="test_resnet cannot be a RADIO checkpoint"):
            export_weights(cnn, form, tmp_path / "x", height=48, width=48)
    for form in (ExportFormat.timm, ExportFormat.safetensors):
        assert export_weights(cnn, form, tmp_path / form.value, height=64, width=48).max_abs_error < 1e-5


@pytest.mark.parametrize(
    ("overrides", "where"),
    [
        (["export.format=radio", "export.onnx_file=x.onnx"], "export.onnx_file"),
        (["export.format=hf", "export.data_type=bf16"], "export.data_type"),
        (["export.output=x"], "export.output"),
        (["export.format=hf", "export.adaptor_types=own"], "export.adaptor_types"),
        (["export.format=radio", "export.adaptor_types=own"], "export.adaptor_types"),
    ],
)
def test_fields_that_contradict_each_other(overrides, where, spec):
    with pytest.raises((SpecError, EngineError)) as caught:
        export(spec(*overrides))
    assert [p.where for p in caught.value.problems] == [where]


TEACHER = {
    "name": "t",
    "mode": "spatial",
    "loss_type": "MSE",
    "model": {"backbone": {"type": "test_resnet"}},
    "pretrained_teacher_model_path": "t.pth",
}


def test_a_chained_export_is_checked_before_the_run():
    def problems(**export_fields):
        raw = {
            "model": {"backbone": {"type": "test_efficientnet"}},
            "distill": {"teacher": [TEACHER], "then": ["export", "gen_trt_engine"]},
            "export": export_fields,
        }
        return load_spec(raw)

    found = {p.where for p in check(problems(format="radio", adaptors=["u"]))}
    assert {"export.adaptors", "export.format"} <= found
    with pytest.raises(SpecError, match="export.format: a test_efficientnet cannot be a RADIO checkpoint"):
        design_models(problems(format="radio"), "distill")
    design_models(problems(format="timm"), "distill")


def test_the_text_tower_of_a_teacher_is_in_the_run_and_reaches_the_file(tmp_path):
    kwargs = {"embed_dim": 32, "depth": 1, "num_heads": 2}
    clip = TEACHER | {
        "name": "clip",
        "mode": "combo",
        "model": {"backbone": {"type": "vit_base_patch16_clip_224.openai", "kwargs": {**kwargs, "num_classes": 24}}},
    }
    map_only = clip | {"name": "map", "mode": "spatial"}
    raw = {
        "model": {"backbone": {"type": "radio_vit_tiny_patch16", "kwargs": kwargs}},
        "dataset": {"img_size": 64},
        "distill": {"teacher": [clip, map_only, TEACHER], "use_mlp": True, "then": ["export"]},
        "export": {"format": "radio", "adaptor_types": "own"},
    }
    architecture = design_models(load_spec(raw), "distill").architecture
    assert [head.text_tower for head in architecture.heads] == ["ViT-B-16-quickgelu:openai", "", ""]
    again = StudentArchitecture.from_json(architecture.to_json())
    assert [head.text_tower for head in again.heads] == [head.text_tower for head in architecture.heads]
    assert architecture.to_json().count("text_tower") == 1  # files of other teachers are as before
    report = export_weights(
        Student(again), ExportFormat.radio, tmp_path / "s.pth", height=64, width=64, types=AdaptorTypes.own
    )
    assert any("needs open_clip for the text tower ViT-B-16-quickgelu:openai" in note for note in report.notes)
    raw["distill"]["teacher"] = [map_only, TEACHER]
    with pytest.raises(SpecError, match="export.adaptor_types: no text tower is known for the heads of map, t"):
        design_models(load_spec(raw), "distill")
