"""A student that is published is the one that others fetch, with a card of its making."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch
import yaml

import radioplat
from radioplat.models.student.checkpoint import save_student
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.spec.loading.load import load_spec, to_yaml
from tests.helpers.loopback_hub import Hub, loopback_hub


@pytest.fixture
def hub():
    with loopback_hub() as served:
        yield served


@pytest.fixture
def student(tmp_path) -> Student:
    """Write a run with a student, and an evaluation of it."""
    torch.manual_seed(0)
    made = Student(StudentArchitecture("vit_tiny_patch16_224", {"depth": 1, "img_size": 32}, img_size=32)).eval()
    checkpoint = tmp_path / "results" / "distill" / "model_epoch_001"
    checkpoint.mkdir(parents=True)
    save_student(made, made.state_dict(), checkpoint)
    (checkpoint / "optimizer.safetensors").write_bytes(b"large")
    (checkpoint.parent / "model_latest").symlink_to("model_epoch_001")
    order = {"order_hash": "ab" * 32, "order_fields": {"index_rows": "cd" * 32}}
    (checkpoint / "state.json").write_text(
        json.dumps({"schema": 1, "global_step": 1000, "samples_consumed": 32000, **order})
    )
    (weights := tmp_path / "private" / "siglip.safetensors").parent.mkdir()
    weights.write_bytes(b"w")
    teacher = {
        "name": "siglip",
        "model": {"backbone": {"type": "vit_base_patch16_siglip_256.v2_webli"}},
        "pretrained_teacher_model_path": str(weights),
    }
    spec = load_spec({"distill": {"teacher": [teacher]}, "dataset": {"train_dataset": {"images_dir": "/a/photos"}}})
    (checkpoint.parent / "experiment.yaml").write_text(to_yaml(spec))
    where = "distill.teacher[0].pretrained_teacher_model_path"
    files = {"siglip.safetensors": {"bytes": 1, "mtime_ns": 1, "sha256": hashlib.sha256(b"w").hexdigest()}}
    recorded = {"where": where, "teacher": "siglip", "path": str(weights), "address": "", "from_step": 0}
    record = {"schema": 1, "sources": [recorded | {"files": files, "problem": ""}]}
    (checkpoint.parent / "sources.json").write_text(json.dumps(record))
    (folder := tmp_path / "results" / "evaluate").mkdir()
    fidelity = {"student": {"siglip": {"summary": {"centered": 0.6541}}}}
    measured = {"checkpoint": "model_epoch_001", "knn": {"student": {"top1": 0.7123}}, "fidelity": fidelity}
    (folder / "results.json").write_text(json.dumps(measured))
    return made


def test_what_is_published_is_what_others_load(hub: Hub, run, student, tmp_path):
    out = run("push", "results", "hf://me/student", HF_TOKEN=hub.token)
    assert f"published: {hub.url}/me/student/commit/" in out and hub.token not in out
    files = hub.repositories["me/student"][-1]
    assert sorted(files) == ["README.md", "config.json", "heads.safetensors", "student.safetensors"]
    fetched = run("weights", "fetch", "hf://me/student")
    folder = Path(fetched.split(": ")[1].split(" (")[0])
    images = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        ours, theirs = student(images), radioplat.load_student(folder)(images)
    assert torch.equal(ours.of("summary"), theirs.of("summary"))
    assert json.loads(files["config.json"])["architecture"]["type"] == "vit_tiny_patch16_224"


def test_the_card_says_how_it_was_made(hub: Hub, run, student, tmp_path):
    run("push", "results/distill", "hf://me/student", HF_TOKEN=hub.token)
    card = hub.repositories["me/student"][-1]["README.md"].decode()
    _, front, text = card.split("---\n", 2)
    assert yaml.safe_load(front)["library_name"] == "radioplat"
    kind, digest = "vit_base_patch16_siglip_256.v2_webli", "50e721e49c01"  # of b"w", by sha256sum
    assert f"| siglip | `{kind}` | siglip.safetensors, sha256 {digest} | apache-2.0 |" in text
    assert "1,000 steps, 32,000 samples" in text and "cdcdcdcdcdcd; of their order: abababababab" in text
    assert "| kNN top-1, student | 0.712 |" in text and "| fidelity to siglip, summary | 0.654 |" in text
    assert "- data: 1 source(s)" in text and "photos" not in card and str(tmp_path) not in card
    # A run of an earlier version recorded no hashes, and the file that is there now may be another.
    (tmp_path / "results/distill/sources.json").unlink()
    run("push", "results", "hf://me/student", HF_TOKEN=hub.token)
    card = hub.repositories["me/student"][-1]["README.md"].decode()
    assert "| siglip.safetensors, sha256 not recorded by the version that wrote it |" in card and digest not in card
    # A checkpoint alone has no run: no teachers, no data. An evaluation of another checkpoint is not shown.
    run("push", "results/distill/model_epoch_001", "hf://me/other", HF_TOKEN=hub.token)
    (tmp_path / "results/evaluate/results.json").write_text('{"checkpoint": "model_epoch_002", "knn": {}}')
    run("push", "results", "hf://me/student", HF_TOKEN=hub.token)
    assert "Measured" not in hub.repositories["me/student"][-1]["README.md"].decode()


def test_files_of_an_earlier_student_go(hub: Hub, run, student, tmp_path):
    """An average that stayed would be read as the new student's."""
    average = tmp_path / "results" / "distill" / "model_epoch_001" / "ema.safetensors"
    average.write_bytes((average.parent / "student.safetensors").read_bytes())
    run("push", "results", "hf://me/student", HF_TOKEN=hub.token)
    average.unlink()
    run("push", "results", "hf://me/student", HF_TOKEN=hub.token)
    first, second = hub.repositories["me/student"][-2:]
    assert "ema.safetensors" in first and "ema.safetensors" not in second


def test_what_cannot_be_published_is_said(hub: Hub, run, student, tmp_path):
    (tmp_path / "empty").mkdir()
    assert "there is no student here. Give the results_dir" in run("push", "empty", "hf://me/a", code=1)
    hub.put("me/open", README__md=b"#")
    refused = run("push", "results", "hf://me/open", "--private", code=1, HF_TOKEN=hub.token)
    assert "this repository is there and public" in refused and len(hub.repositories["me/open"]) == 1
    file = "results/distill/model_epoch_001/student.safetensors"
    assert "there is no student here" in run("push", file, "hf://me/a", code=1)
    assert "it does not exist" in run("push", "nothing", "hf://me/a", code=1)
    for wrong in ("timm:a", "hf://me/a@main", "hf://me/a/file.bin"):
        assert "Give hf://ORG/NAME." in run("push", "results", wrong, code=1)
    assert "HF_TOKEN" in run("push", "results", "hf://me/a", code=1)
    assert "cannot be reached" in run("push", "results", "hf://me/a", code=1, HF_ENDPOINT="http://127.0.0.1:1")
