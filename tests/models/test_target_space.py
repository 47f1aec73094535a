"""Transforms of targets inside heads: there and back, in fp32 whatever happens to the module, and folded away."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch

from radioplat.exporting.onnx.flat_student import FlatStudent
from radioplat.losses.target_transforms.phi_s import phi_s
from radioplat.models.heads import HeadArchitecture, TeacherHead
from radioplat.models.student.checkpoint import load_student, save_student
from radioplat.models.student.fold_target_norm import fold_head
from radioplat.models.student.student import Student, StudentArchitecture

FORMS = ["scalar", "channels", "matrix"]
WIDTH = 12


def fill(head: TeacherHead, kind: str) -> None:
    """A transform as a run would have measured: a spread of 1 to 100, a mean beyond it."""
    generator = torch.Generator().manual_seed(4)
    width = len(getattr(head, f"{kind}_mean"))
    mean = 100 * torch.randn(width, generator=generator)
    form = head.form(kind)
    if form == "matrix":
        factor = torch.randn(width, width, generator=generator).double() * torch.logspace(0, 1, width)
        found = phi_s(factor @ factor.T)
        head.set_space(kind, mean=mean, rotation=found.forward, inverse=found.inverse)
    else:
        scale = torch.tensor(3.0) if form == "scalar" else torch.linspace(1, 9, width)
        head.set_space(kind, mean=mean, scale=scale)


def student(form: str, hidden: int = 8) -> Student:
    torch.manual_seed(0)
    heads = (
        HeadArchitecture("t", WIDTH, WIDTH, hidden=hidden, summary_norm=form, spatial_norm=form),
        HeadArchitecture("plain", spatial_dim=5),
    )
    kwargs = {"embed_dim": 24, "depth": 1, "num_heads": 2}
    built = Student(StudentArchitecture("radio_vit_tiny_patch16", kwargs, img_size=32, heads=heads)).eval()
    for kind in ("summary", "spatial"):
        fill(built.heads["t"], kind)
    return built


IMAGES = torch.rand(2, 3, 32, 48, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("form", FORMS)
@torch.no_grad()
def test_raw_and_back(form):
    head = student(form).heads["t"]
    assert head.form("summary") == form
    rows = torch.randn(50, WIDTH)
    raw = head.raw("summary", rows)
    assert torch.allclose(head.standardize("summary", raw), rows, atol=1e-4)
    again = head.raw("summary", head.standardize("summary", raw))
    assert (again - raw).abs().max() / raw.std(0).mean() < 1e-5
    logits = torch.randn(2, 3).bfloat16()
    assert torch.equal(head.standardize("logits", logits), logits.float())


@pytest.mark.parametrize("form", FORMS)
@torch.no_grad()
def test_a_head_speaks_raw_features_or_those_of_the_losses(form):
    model = student(form)
    features, head = model(IMAGES), model.heads["t"]
    raw, inner = head(features), head(features, raw=False)
    for kind in ("summary", "spatial"):
        assert torch.allclose(getattr(raw, kind), head.raw(kind, getattr(inner, kind)))
        assert torch.allclose(head.standardize(kind, getattr(raw, kind)), getattr(inner, kind), atol=1e-4)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("cast", [lambda m: m.bfloat16(), lambda m: m.half(), lambda m: m.to(torch.bfloat16)])
def test_a_cast_leaves_transforms_in_fp32(form, cast):
    model = student(form)
    before = {k: v.clone() for k, v in model.named_buffers() if k.startswith("heads.")}
    cast(model)
    assert next(model.parameters()).dtype in (torch.bfloat16, torch.float16)
    after = dict(model.named_buffers())
    for name, value in before.items():
        assert torch.equal(after[name], value) and after[name].dtype is torch.float32, name
    assert model.heads["t"].standardize("summary", torch.ones(WIDTH).bfloat16()).dtype is torch.float32


def test_other_moves_are_as_ever():
    head = student("matrix").heads["t"]
    assert head.double().summary_rotation.dtype is torch.float64
    architecture = student("matrix").architecture
    with torch.device("meta"):
        empty = Student(architecture)
    assert empty.heads["t"].summary_rotation.is_meta
    assert empty.bfloat16().heads["t"].summary_rotation.dtype is torch.float32
    assert empty.to_empty(device="cpu").heads["t"].summary_rotation.shape == (WIDTH, WIDTH)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("hidden", [0, 8])
@torch.no_grad()
def test_folding_changes_no_output_and_leaves_plain_heads(form, hidden):
    model = student(form, hidden)
    folded = copy.deepcopy(model)
    heads = tuple(fold_head(head) for head in folded.heads.values())
    folded.architecture = dataclasses.replace(folded.architecture, heads=heads)
    for name in ("t", "plain"):
        before, after = model.head(name, model(IMAGES)), folded.head(name, folded(IMAGES))
        for kind in ("summary", "spatial"):
            if getattr(before, kind) is not None:
                assert torch.allclose(getattr(after, kind), getattr(before, kind), rtol=1e-5, atol=1e-4)
    head = folded.heads["t"]
    assert head.form("summary") == head.form("spatial") == "scalar" and not head.summary_mean.any()
    plain = dataclasses.replace(model.architecture.heads[0], summary_norm="scalar", spatial_norm="scalar")
    assert folded.architecture.heads[0] == head.architecture == plain
    again = Student(folded.architecture)
    again.load_state_dict(folded.state_dict())


@torch.no_grad()
def test_folding_is_exact():
    """In float64 nothing is left of the difference."""
    head = student("matrix").heads["t"].double()
    x = torch.randn(7, 24).double()
    linear = head.summary.final[-1]
    hidden = head.summary.final[:-1](head.summary.fc1(x))
    expected = linear(hidden) @ head.summary_inverse.T + head.summary_mean
    fold_head(head)
    assert torch.allclose(linear(hidden), expected, rtol=1e-12, atol=1e-12)


@torch.no_grad()
def test_several_positions_of_one_layer_are_folded_alike():
    """A last layer that gives four positions at once, for pixel shuffle."""
    head = student("matrix", hidden=0).heads["t"]
    head.spatial = torch.nn.Linear(24, 4 * WIDTH, bias=False)
    x = torch.randn(3, 24)
    expected = head.raw("spatial", head.spatial(x).view(3, 4, WIDTH))
    fold_head(head)
    assert torch.allclose(head.spatial(x).view(3, 4, WIDTH), expected, rtol=1e-5, atol=1e-4)


@torch.no_grad()
def test_an_export_folds_matrices_and_adds_means_last():
    model = student("matrix")
    flat = FlatStudent(model, ["t"])
    names = flat.find_outputs(32, 48)
    found = dict(zip(names, flat(IMAGES), strict=True))
    expected = model.head("t", model(IMAGES))
    assert torch.allclose(found["t.summary"], expected.summary, rtol=1e-5, atol=1e-4)
    assert torch.allclose(found["t.spatial"], expected.spatial, rtol=1e-5, atol=1e-4)
    inside = flat.student.heads["t"]
    assert inside.form("summary") == "scalar" and torch.equal(inside.summary_mean, model.heads["t"].summary_mean)
    scalar = student("scalar")
    left = FlatStudent(scalar, ["t"]).student.heads["t"]
    assert torch.equal(left.summary.final[-1].weight, scalar.heads["t"].summary.final[-1].weight)


@pytest.mark.parametrize("form", FORMS)
@torch.no_grad()
def test_a_checkpoint_keeps_the_transform(form, tmp_path):
    model = student(form)
    save_student(model, model.state_dict(), tmp_path)
    loaded = load_student(tmp_path)
    assert loaded.architecture == model.architecture
    assert torch.equal(loaded.head("t", loaded(IMAGES)).spatial, model.head("t", model(IMAGES)).spatial)


def test_architectures_without_these_fields_load():
    old = '{"type": "x", "heads": [{"name": "t", "summary_dim": 4}], "mean": [0, 0, 0], "std": [1, 1, 1]}'
    head = StudentArchitecture.from_json(old).heads[0]
    assert head.summary_norm == head.spatial_norm == "scalar"
