"""Statistics that one run leaves for others: read back as they were, refused where they are of another teacher."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from target_norm import fit_target_norm

from radioplat import __version__
from radioplat.data.batch import Batch
from radioplat.errors import SpecError
from radioplat.losses.target_transforms.transform import FORMS
from radioplat.models.features import Features
from radioplat.models.heads import HeadArchitecture
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.spec.loading.load import load_spec
from radioplat.spec.resolved.teacher import ResolvedTeacher, resolve_teachers
from radioplat.spec.schema.distill import TargetNormType
from radioplat.teachers.serving.transport import pack
from radioplat.training.targets.file import problems, share_moments, shared_moments
from radioplat.training.targets.transforms import set_transforms

WIDTHS = {("t", "summary"): 5, ("t", "spatial"): 7}


def teachers(weights, kind: str = "phi_s", name: str = "t") -> list[ResolvedTeacher]:
    teacher = {
        "name": name,
        "model": {"backbone": {"type": "test_vit"}},
        "mode": "combo",
        "loss_type": "MSE",
        "pretrained_teacher_model_path": str(weights),
    }
    return resolve_teachers(load_spec({"distill": {"target_norm": {"type": kind}, "teacher": [teacher]}}))


def student(kind: str) -> Student:
    form = FORMS[TargetNormType(kind)]
    kwargs = {"embed_dim": 24, "depth": 1, "num_heads": 2}
    heads = (HeadArchitecture("t", 5, 7, summary_norm=form, spatial_norm=form),)
    return Student(StudentArchitecture("radio_vit_tiny_patch16", kwargs, img_size=32, heads=heads))


@pytest.fixture
def weights(tmp_path):
    path = tmp_path / "teacher.safetensors"
    save_file({"w": torch.ones(3)}, path)
    return path


@pytest.fixture
def written(weights, tmp_path):
    """(path of a file, the head that was fitted when it was written)."""
    path, nothing = tmp_path / "shared" / "targets.safetensors", np.zeros(8, np.int64)
    generator = torch.Generator().manual_seed(2)
    answer = pack(
        Features(torch.randn(8, 5, generator=generator) + 3, torch.randn(8, 2, 2, 7, generator=generator)), 0.0
    )
    fed = [(Batch(0, {}, nothing, nothing, np.ones(8, np.float32), nothing), {"t": lambda: answer})]
    model = student("phi_s")
    found = fit_target_norm(model, teachers(weights), fed, torch.device("cpu"), full=True)
    share_moments(str(path), teachers(weights), found)
    return path, model.heads["t"]


@pytest.mark.parametrize("kind", ["phi_s", "zca", "pca", "standardize", "standardize_channels"])
def test_another_run_takes_any_transform_from_it(kind, written, weights):
    path, fitted = written
    found = shared_moments(str(path), teachers(weights, kind), WIDTHS)
    model = student(kind)
    set_transforms(model, teachers(weights, kind), found)
    head = model.heads["t"]
    assert torch.allclose(head.summary_mean, fitted.summary_mean, rtol=1e-2)
    if kind == "phi_s":
        for name, value in fitted.named_buffers():
            assert torch.equal(dict(head.named_buffers())[name], value), name


def test_without_a_file_there_is_nothing(tmp_path, weights):
    assert shared_moments(None, teachers(weights), WIDTHS) is None
    assert shared_moments(str(tmp_path / "none"), teachers(weights), WIDTHS) is None
    share_moments(None, teachers(weights), {})


def test_a_file_that_fits_is_no_problem(written, weights):
    assert problems(written[0], teachers(weights), WIDTHS) == []
    assert [p.name for p in written[0].parent.iterdir()] == ["targets.safetensors"]


def test_one_of_a_newer_version_is_named_with_it(written, weights):
    path = written[0]
    with safe_open(path, "pt") as opened:
        about = json.loads(opened.metadata()["radioplat.target_norm"])
    assert about["radioplat"] == __version__
    about |= {"version": 2, "radioplat": "9.9"}
    save_file(load_file(path), path, {"radioplat.target_norm": json.dumps(about), "format": "pt"})
    before = path.read_bytes()
    with pytest.raises(SpecError, match="its content has schema 2, written by radioplat 9.9; .* reads up to schema 1"):
        shared_moments(str(path), teachers(weights), WIDTHS)
    assert path.read_bytes() == before


def test_what_does_not_fit_is_named(written, weights):
    path = written[0]
    (other_name,) = problems(path, teachers(weights, name="u"), {("u", k): n for (_, k), n in WIDTHS.items()})
    assert "says nothing of the spatial of teacher u" in str(other_name)
    (other_width,) = problems(path, teachers(weights), WIDTHS | {("t", "spatial"): 9})
    assert "spatial is 7 wide there and 9 here" in str(other_width)
    save_file({"w": torch.zeros(30)}, weights)
    (other_weights,) = problems(path, teachers(weights), WIDTHS)
    assert "other weights of teacher t" in str(other_weights)
    for problem in (other_name, other_width, other_weights):
        assert problem.where == "distill.target_norm.path" and problem.hint
    with pytest.raises(SpecError, match="other weights") as caught:
        shared_moments(str(path), teachers(weights), WIDTHS)
    assert caught.value.agreed


@pytest.mark.parametrize("damage", [lambda p: p.write_bytes(p.read_bytes()[:50]), lambda p: p.write_text("{}")])
def test_what_is_no_such_file(damage, written, weights):
    damage(written[0])
    (problem,) = problems(written[0], teachers(weights), WIDTHS)
    assert "holds no statistics" in str(problem)


def test_weights_are_no_statistics(written, weights):
    save_file(load_file(written[0]), written[0])  # the tensors, without what they are of
    assert "holds no statistics" in str(problems(written[0], teachers(weights), WIDTHS)[0])
    assert "holds no statistics" in str(problems(weights, teachers(weights), WIDTHS)[0])


def test_a_place_that_cannot_be_written(written, weights):
    with pytest.raises(SpecError, match="cannot be written"):
        share_moments(str(weights / "inside_a_file"), teachers(weights), {})
