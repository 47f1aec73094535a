"""What every loss of the spec promises: what does not count changes neither its value nor a gradient."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from radioplat.losses.base.criterion import BatchWise, MapWise
from radioplat.losses.base.running_statistics import Running
from radioplat.losses.registry import CRITERIA, criterion
from radioplat.spec.resolved.losses import LOSSES, Binds
from radioplat.spec.resolved.terms import Term
from radioplat.spec.schema.distill import DistillConfig, Kind, KLForm, LossType

NAN = float("nan")
B, H, W, D = 5, 3, 4, 6
# Those of bindings alone compare a detector's maps, as they are.
CASES = [(kind.value, loss) for loss, known in LOSSES.items() for kind in known.fits or (Kind.spatial,)]


def each(cases: list[tuple[str, LossType]]):
    return pytest.mark.parametrize(("kind", "loss"), cases, ids=[f"{kind}-{loss.value}" for kind, loss in cases])


EVERY, SPATIAL = each(CASES), each([case for case in CASES if case[0] == "spatial"])


def make(kind: str, loss: LossType, **config) -> Running:
    term = Term(kind, loss, 1.0, focal=(0.7, 1.5, 3.0) if kind == "spatial" else None)
    return criterion(term, D, DistillConfig(**config))


def pair(kind: str, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = (B, H, W, D) if kind == "spatial" else (B, D)
    return [2 * torch.randn(shape, generator=generator) for _ in range(2)]


def run(compare, student, teacher, weight, valid=None):
    """Mean over the micro-batch, and the student's gradient."""
    student = student.clone().requires_grad_()
    values, counts = compare(student, teacher, weight, valid)
    assert values.shape == counts.shape == weight.shape and values.dtype is torch.float32
    loss = (values * counts).sum() / counts.sum().clamp(min=1e-6)
    loss.backward()
    return loss.detach(), student.grad


def test_every_name_of_the_spec_is_some_loss_and_fits_somewhere():
    assert set(LossType) == set(LOSSES) == set(CRITERIA) == {loss for _, loss in CASES}
    assert all(known.name is loss for loss, known in LOSSES.items())


@EVERY
def test_what_is_known_of_a_loss_is_true_of_what_computes_it(kind, loss):
    known, made = LOSSES[loss], make(kind, loss)
    assert known.keeps_statistics == bool(list(made.buffers()))
    whole_map = isinstance(made, MapWise)  # `similarity` is one for maps, and compares images for summaries
    assert whole_map if known.maps_only else not whole_map or (kind == "spatial" and known.least_images > 1)
    assert (known.least_images > 1) == (isinstance(made, BatchWise) or (whole_map and not known.maps_only))
    assert bool(known.fits) or known.binds is Binds.detector_maps
    if kind == "spatial" and known.fits:
        assert known.by_position == (getattr(made, "focal", None) is not None)


@EVERY
def test_dead_samples_are_as_if_they_were_not_there(kind, loss):
    student, teacher = pair(kind)
    weight = torch.tensor([1.0, 0, 1, 1, 0])
    alive = weight > 0
    expected, gradient = run(make(kind, loss), student[alive], teacher[alive], weight[alive])
    assert expected > 0 and gradient.any()
    student[~alive], teacher[~alive] = NAN, NAN
    found, whole = run(make(kind, loss), student, teacher, weight)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(whole[alive], gradient)
    assert not whole[~alive].any()


@SPATIAL
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_masked_positions_change_nothing(kind, loss, data):
    flags = data.draw(st.lists(st.booleans(), min_size=B * H * W, max_size=B * H * W))
    valid = torch.tensor(flags, dtype=torch.float32).view(B, H, W)
    student, teacher = pair(kind, 1)
    results = []
    for filler in (0.0, NAN, 1e4):
        for x in (student, teacher):
            x[valid == 0] = filler
        results.append(run(make(kind, loss), student, teacher, torch.ones(B), valid))
    for value, gradient in results:
        torch.testing.assert_close(value, results[0][0])
        torch.testing.assert_close(gradient, results[0][1])
        assert torch.isfinite(gradient).all() and not gradient[valid == 0].any()


@SPATIAL
def test_a_mask_that_hides_nothing_is_no_mask(kind, loss):
    student, teacher = pair(kind, 2)
    plain, masked = (run(make(kind, loss), student, teacher, torch.ones(B), v) for v in (None, torch.ones(B, H, W)))
    for found, expected in zip(masked, plain, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


@EVERY
def test_nothing_alive_is_zero_without_gradient(kind, loss):
    student, teacher = pair(kind)
    value, gradient = run(make(kind, loss), student * NAN, teacher * NAN, torch.zeros(B))
    assert value == 0 and not gradient.any()


@each([case for case in CASES if case[1] is not LossType.CE])  # which has the entropy left
def test_a_perfect_student_has_no_loss(kind, loss):
    _, teacher = pair(kind)
    value, gradient = run(make(kind, loss), teacher, teacher, torch.ones(B))
    torch.testing.assert_close(value, torch.tensor(0.0), atol=1e-5, rtol=0)
    assert torch.isfinite(gradient).all()


def test_the_form_of_kl_is_the_specs():
    student, teacher = pair("logits")
    found, _ = run(make("logits", LossType.KL, kl_form=KLForm.hinton, temperature=3.0), student, teacher, torch.ones(B))
    soft = [(x / 3).softmax(-1).double() for x in (student, teacher)]
    torch.testing.assert_close(found.double(), 9 * (soft[1] * (soft[1] / soft[0]).log()).sum() / B)
