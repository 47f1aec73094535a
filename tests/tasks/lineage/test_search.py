"""Artifacts are located by hashes: at the hinted path first, then anywhere in the results folder."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from radioplat.models.source import Source
from radioplat.tasks.lineage.node import State, checked, measured
from radioplat.tasks.lineage.search import Survey, graph_hashes, locate, results_root, stage_of, written_hashes


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def results(tmp_path) -> Path:
    """A run with two checkpoints, a smaller student, a graph and a chain; the files hold texts."""
    for name in ("distill/model_epoch_001", "distill/model_epoch_002", "prune/model_pruned", "distill/data"):
        (tmp_path / "results" / name).mkdir(parents=True)
        (tmp_path / "results" / name / "student.safetensors").write_bytes(name.encode())
    for task in ("distill", "prune", "export"):
        (tmp_path / "results" / task).mkdir(exist_ok=True)
        (tmp_path / "results" / task / "experiment.yaml").write_text("")
    (tmp_path / "results" / "distill" / "ledger").mkdir()
    (tmp_path / "results" / "distill" / "model_latest").symlink_to("model_epoch_002")
    (tmp_path / "results" / "export" / "student.onnx").write_bytes(b"graph")
    return tmp_path / "results"


def of(name: str, data: bytes) -> Source:
    return Source(name, {"student.safetensors": sha256(data)})


def test_a_survey_has_each_artifact_once_and_nothing_of_a_run_s_data(results):
    survey = Survey(results)
    names = [path.relative_to(results).as_posix() for path in survey.students]
    assert names == ["distill/model_epoch_001", "distill/model_epoch_002", "prune/model_pruned"]
    assert survey.onnx == [results / "export" / "student.onnx"] and survey.runs == [results / "distill"]


def test_only_the_hash_decides(results):
    survey, first = Survey(results), results / "distill" / "model_epoch_001"
    source = of("model_epoch_009", b"distill/model_epoch_001")
    assert locate(source, [results / "distill" / "model_latest"], survey) == first
    assert locate(of("model_epoch_001", b"other"), [first], survey) is None
    copy = results.parent / "elsewhere"
    copy.mkdir()
    (copy / "student.safetensors").write_bytes(b"distill/model_epoch_001")
    assert locate(source, [copy], survey) == copy
    # A manifest says which files they were, whatever they are now.
    (first / "manifest.json").write_text(json.dumps({"student.safetensors": sha256(b"before")}))
    assert written_hashes(first)["student.safetensors"] == sha256(b"before")
    assert locate(of("any", b"before"), [], survey) == first


def test_a_graph_is_located_by_itself_or_with_its_weights(results):
    graph = results / "export" / "student.onnx"
    assert graph_hashes(graph) == (sha256(b"graph"),)
    graph.with_name("student.onnx.data").write_bytes(b"weights")
    assert graph_hashes(graph) == (sha256(b"graph"), sha256(b"graphweights"))
    survey = Survey(results)
    for digest in graph_hashes(graph):
        assert locate(Source("a.onnx", {"a.onnx": digest}), [], survey) == graph


def test_the_results_folder_and_the_stage_of_an_artifact(results):
    assert results_root(results / "distill" / "model_epoch_001") == results
    stage = results / "compress" / "01_prune" / "prune" / "model_pruned"
    stage.mkdir(parents=True)
    for folder in (results / "compress", stage.parent):
        (folder / "experiment.yaml").write_text("")
    (results / "compress" / "compress.json").write_text(json.dumps({"stages": [{"name": "01_prune"}]}))
    assert results_root(stage) == results and stage_of(stage) == "01_prune"
    assert stage_of(results / "prune" / "model_pruned") == ""


def test_a_neighbour_of_the_results_folder_is_not_its_root(results):
    neighbour = results.parent.parent / f"{results.parent.name}_neighbour"
    neighbour.mkdir()
    (neighbour / "experiment.yaml").write_text("")
    assert results_root(results / "export" / "student.onnx") == results


def test_the_states_of_a_file(tmp_path):
    file = tmp_path / "a.bin"
    assert checked(file, "00", "record").state is State.absent
    file.write_bytes(b"a")
    assert checked(file, sha256(b"a"), "record").state is State.same
    assert checked(file, sha256(b"b"), "record").state is State.changed
    assert checked(file, sha256(b"b"), "record", verify=False).state is State.unread
    assert measured(file).sha256 == sha256(b"a") and measured(file).state is State.measured
