"""Exported files and smaller students name the hashes of what they were made of."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from radioplat.exporting.made_of import record_sources, recorded_sources
from radioplat.exporting.weights.export import export_weights
from radioplat.models.source import Source, read_sources, source_of, sources_in, sources_of_weights
from radioplat.models.student.checkpoint import load_student
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.models.vision_model import save_model
from radioplat.models.weights.manifest import MANIFEST
from radioplat.spec.schema.export import ExportFormat
from radioplat.tasks.shared.model_folder import write_model

VIT = {"embed_dim": 48, "depth": 1, "num_heads": 3, "final_norm": False}


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def student() -> Student:
    return Student(StudentArchitecture("radio_vit_small_patch16", VIT, img_size=32, cpe_max_size=32)).eval()


@pytest.fixture(scope="module")
def checkpoint(student, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "model_epoch_001"
    save_model(student, folder)
    return folder


def test_a_source_has_the_files_that_a_reader_opens(checkpoint, tmp_path):
    names = ("student.safetensors", "heads.safetensors")
    hashes = {name: sha256(checkpoint / name) for name in names}
    assert source_of(checkpoint) == Source("model_epoch_001", hashes, str(checkpoint))
    copy = tmp_path / "with_average"
    shutil.copytree(checkpoint, copy)
    shutil.copyfile(copy / names[0], copy / "ema.safetensors")
    (copy / "optimizer.safetensors").write_bytes(b"moments")
    assert set(source_of(copy).files) == {*names, "ema.safetensors"}
    assert set(source_of(copy, ema=False).files) == set(names)
    (link := tmp_path / "model_latest").symlink_to("with_average")
    assert source_of(link).name == "with_average"


WITHOUT_ONNX = [form for form in ExportFormat if form is not ExportFormat.onnx]


@pytest.mark.parametrize("form", WITHOUT_ONNX, ids=lambda form: form.value)
def test_weights_of_each_format_name_their_checkpoint_without_its_path(student, checkpoint, tmp_path, form):
    source = source_of(checkpoint)
    made = export_weights(student, form, tmp_path / "made.pth", height=32, width=32, sources=[source])
    target = made.path
    if form in (ExportFormat.timm, ExportFormat.safetensors):
        target = target.rename(tmp_path / "made.safetensors")
    assert sources_of_weights(target) == [Source(source.name, source.files)]
    files = [file for file in target.rglob("*") if file.is_file()] if target.is_dir() else [target]
    assert not any(str(checkpoint).encode() in file.read_bytes() for file in files)


def test_weights_without_a_record_have_no_sources(student, checkpoint, tmp_path):
    made = export_weights(student, ExportFormat.radio, tmp_path / "made.pth", height=32, width=32)
    assert sources_of_weights(made.path) == sources_of_weights(checkpoint) == []
    (tmp_path / "no.pth").write_bytes(b"no weights")
    assert sources_of_weights(tmp_path / "no.pth") == sources_in({"radioplat.source": "{"}) == []


def test_the_metadata_of_an_onnx_file_is_replaced_and_other_entries_stay(tmp_path):
    onnx = pytest.importorskip("onnx")
    model = onnx.ModelProto(ir_version=9)
    model.metadata_props.add(key="author", value="me")
    onnx.save(model, str(tmp_path / "a.onnx"))
    for source in (Source("one", {"a": "1"}, "/home/me/one"), Source("two", {"b": "2"})):
        record_sources(tmp_path / "a.onnx", [source])
        read = onnx.load(str(tmp_path / "a.onnx"))
        assert recorded_sources(read) == [Source(source.name, source.files)]
        assert [(entry.key, entry.value) for entry in read.metadata_props][0] == ("author", "me")


def test_a_smaller_student_has_its_sources_and_a_manifest(student, checkpoint, tmp_path):
    source = source_of(checkpoint)
    write_model(student, tmp_path / "model_pruned", "prune.json", {"amount": 0.5}, [source])
    folder = tmp_path / "model_pruned"
    assert read_sources(folder) == [source]
    sums = json.loads((folder / MANIFEST).read_text())
    assert sums == {name: sha256(folder / name) for name in sums} and {"source.json", "prune.json"} < set(sums)
    assert set(sums) == {file.name for file in folder.iterdir()} - {MANIFEST}
    load_student(folder)
