"""Heads that were trained under one transform of their targets and go on under another: what they say stays."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from radioplat.models.features import Features
from radioplat.models.heads import HeadArchitecture, TeacherHead
from radioplat.models.pretrained.initial_weights import start_notes, start_student
from radioplat.models.student.checkpoint import save_one_file
from radioplat.models.student.fold_target_norm import fold_head, unfold_head
from radioplat.models.student.student import Student
from radioplat.models.target_space import CHANNELS, MATRIX, SCALAR
from radioplat.spec.loading.load import load_spec

FORMS = (SCALAR, CHANNELS, MATRIX)
MODEL = "train.pretrained_model_path"


def move(head: TeacherHead, kind: str, seed: int = 0) -> None:
    """Some transform, of the head's own form, that is far from the identity."""
    draw = torch.Generator().manual_seed(seed)
    mean = 5 * torch.randn(len(getattr(head, f"{kind}_mean")), generator=draw)
    form, width = head.form(kind), len(mean)
    if form == MATRIX:
        turn = torch.linalg.qr(torch.randn(width, width, generator=draw, dtype=torch.float64)).Q
        spread = torch.logspace(-1, 1, width, dtype=torch.float64)
        head.set_space(kind, mean=mean, rotation=turn.T / spread[:, None], inverse=turn * spread)
    else:
        shape = (width,) if form == CHANNELS else ()
        head.set_space(kind, mean=mean, scale=0.05 + torch.rand(shape, generator=draw))


def said(head: TeacherHead, features: Features) -> list[torch.Tensor]:
    with torch.no_grad():
        out = head(features)
    return [t for t in (out.summary, out.spatial) if t is not None]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "layers",
    [{}, {"hidden": 9, "num_inner": 1}, {"hidden": 9, "upsample": 2}, {"hidden": 9, "spatial_version": "attn"}],
    ids=["linear", "mlp2", "pixel shuffle", "attn"],
)
def test_taking_a_transform_out_keeps_what_a_head_says(form, layers):
    torch.manual_seed(0)
    head = TeacherHead(HeadArchitecture("t", 6, 6, summary_norm=form, spatial_norm=form, **layers), 16, 16)
    features = Features(torch.randn(3, 16), torch.randn(3, 2, 2, 16), {})
    before = said(head, features)
    for kind in ("summary", "spatial"):
        move(head, kind)
        unfold_head(head, kind)
        assert head.form(kind) == form and not torch.equal(getattr(head, f"{kind}_mean"), torch.zeros(6))
    for mine, theirs in zip(said(head, features), before, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
    fold_head(head)  # and it is the way back of folding
    for mine, theirs in zip(said(head, features), before, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


@pytest.fixture
def under(radio_student):
    """under(form) -> a student whose heads were trained under a transform of that form."""

    def make(form: str) -> Student:
        heads = [
            dataclasses.replace(head, summary_norm=form, spatial_norm=form)
            for head in radio_student().architecture.heads
        ]
        student = radio_student(heads=tuple(heads))
        for head in student.heads.values():
            for kind in ("summary", "spatial"):
                if getattr(head, kind) is not None:
                    move(head, kind)
        return student

    return make


def begun(student: Student, form: str, path: Path, *overrides: str) -> tuple[Student, list[str]]:
    """A run's student under ``form`` that starts from a file of ``student``."""
    save_one_file(student, path, {})
    heads = tuple(dataclasses.replace(h, summary_norm=form, spatial_norm=form) for h in student.architecture.heads)
    architecture = dataclasses.replace(student.architecture, heads=heads)
    spec = load_spec(None, [f"{MODEL}={path}", *overrides])
    return start_student(spec, architecture).eval(), start_notes(spec, architecture)


@pytest.mark.parametrize("new", FORMS)
@pytest.mark.parametrize("old", FORMS)
def test_a_head_says_the_same_under_the_transform_of_another_run(under, image_batch, tmp_path, old, new):
    student = under(old)
    again, notes = begun(student, new, tmp_path / "s.safetensors")
    assert notes == [] and again.raw_heads == {("clip", "summary"), ("clip", "spatial"), ("sam", "spatial")} | {
        ("dino", "summary"),
        ("dino", "spatial"),
    }
    with torch.no_grad():
        features = student(image_batch())
    expected = {name: said(student.heads[name], features) for name in student.head_names}
    for step in ("as it starts", "once its transform is measured"):
        for name, theirs in expected.items():
            for mine, value in zip(said(again.heads[name], features), theirs, strict=True):
                torch.testing.assert_close(mine, value, rtol=1e-4, atol=2e-4, msg=lambda m, s=step: f"{s}: {m}")
        for name, kind in again.raw_heads:
            move(again.heads[name], kind, seed=7)
            unfold_head(again.heads[name], kind)
        again.raw_heads.clear()


@pytest.mark.parametrize("old", [SCALAR, MATRIX])
def test_a_transform_that_moves_is_said_by_name(under, image_batch, tmp_path, old):
    """Measured while training, as TAO does, a transform changes under the head: that cannot be kept, and is told."""
    teachers = [{"name": n, "mode": "spatial", "loss_type": "MSE"} for n in ("clip", "sam", "dino")]
    student = under(old)
    moving = (f"distill.teacher={teachers}", "distill.target_norm.type=phi_s", "distill.target_norm.fit=running")
    again, notes = begun(student, MATRIX, tmp_path / "s.safetensors", *moving)
    assert [n for n in notes if "head clip.spatial" in n and "fit=before keeps it" in n] and len(notes) == 3
    assert again.raw_heads == {("clip", "summary"), ("dino", "summary")}
    with torch.no_grad():
        features = student(image_batch())
        mine, theirs = again.heads["sam"](features).spatial, student.heads["sam"](features).spatial
    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=2e-4)
    kept = torch.equal(again.heads["sam"].spatial_mean, student.heads["sam"].spatial_mean)
    assert kept == (old == MATRIX)  # of the same form it stays until the run's own takes its place


def test_a_student_without_layers_in_a_head_starts_from_its_own_file(radio_student, image_batch, tmp_path):
    heads = (HeadArchitecture("clip", 32, 32, raw_kinds=("summary", "spatial"), identity=True),)
    student = radio_student(heads=heads)
    again, notes = begun(student, CHANNELS, tmp_path / "s.safetensors")
    assert notes == []
    with torch.no_grad():
        features = student(image_batch())
    assert torch.equal(again.heads["clip"](features).summary, features.summary)
    anew, notes = begun(radio_student(), SCALAR, tmp_path / "t.safetensors")
    assert notes == []
    before = dataclasses.replace(anew.architecture, heads=heads)
    spec = load_spec(None, [f"{MODEL}={tmp_path / 't.safetensors'}"])
    assert any("clip" in note for note in start_notes(spec, before)), "the layers of the file's head are not used"
    assert torch.equal(start_student(spec, before).heads["clip"](features).summary, features.summary)


def test_nothing_is_missing_for_a_head_without_layers(radio_student, tmp_path):
    student = radio_student(heads=())
    save_one_file(student, tmp_path / "s.safetensors", {})
    heads = (HeadArchitecture("clip", 32, 32, raw_kinds=("summary", "spatial"), identity=True),)
    spec = load_spec(None, [f"{MODEL}={tmp_path / 's.safetensors'}", "train.pretrained_strict=true"])
    assert start_notes(spec, dataclasses.replace(student.architecture, heads=heads)) == []


def test_files_without_such_a_head_are_as_before_there_was_one(radio_student):
    assert "identity" not in radio_student().architecture.to_json()
