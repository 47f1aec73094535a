import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from radioplat.errors import RadioplatError
from radioplat.evaluation.metrics.fidelity import FidelityMeter, TeacherMean

seeds = st.integers(0, 2**31 - 1)


def normal(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def mean_of(*batches):
    mean = TeacherMean()
    for batch in batches:
        mean.update(batch)
    return mean.mean


def fidelity(student, teacher, mean):
    meter = FidelityMeter(mean)
    meter.update(student, teacher)
    return meter.result()


@pytest.mark.parametrize("shape", [(6, 5), (2, 3, 4, 5)])
def test_identical_is_one_and_mirrored_is_minus_one(shape):
    teacher, mean = normal(0, *shape) + 3, normal(1, 5)
    same = fidelity(teacher, teacher, mean)
    assert same.centered == pytest.approx(1) and same.plain == pytest.approx(1)
    assert same.count == teacher[..., 0].numel()
    assert fidelity(2 * mean - teacher, teacher, mean).centered == pytest.approx(-1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_answering_the_mean_scores_nothing_however_high_the_plain_cosine(dtype):
    mean = (normal(0, 64) + 5).to(dtype).float()  # a mean that the dtype holds, so that nothing but fp32 noise is left
    teacher = mean + 0.5 * normal(1, 500, 64)
    result = fidelity(mean.to(dtype).expand(500, 64), teacher, mean)
    assert result.centered == 0.0 and result.plain > 0.98


def test_rounding_of_the_mean_is_no_direction():
    training = normal(0, 1000, 32) + 100
    mean = mean_of(training)
    teacher = normal(1, 50, 32) + 100
    assert fidelity(mean.float().expand(50, 32), teacher, mean).centered == 0.0


@settings(max_examples=30, deadline=None)
@given(seeds)
def test_any_constant_answer_scores_about_nothing(seed):
    mean = normal(seed, 16) * 3
    held_out = mean + normal(seed + 1, 4000, 16)
    constant = mean + normal(seed + 2, 16)
    # The mean of 4000 cosines, each of variance 1/16, has a standard deviation of 0.004.
    assert abs(fidelity(constant.expand_as(held_out), held_out, mean).centered) < 0.025


def test_known_angle():
    mean = torch.tensor([1.0, 1.0])
    teacher, student = torch.tensor([[2.0, 1.0]]), torch.tensor([[2.0, 2.0]])
    result = fidelity(student, teacher, mean)
    assert result.centered == pytest.approx(0.5**0.5)
    assert result.plain == pytest.approx(6 / (5 * 8) ** 0.5)


@settings(max_examples=30, deadline=None)
@given(seeds, st.floats(0.01, 100))
def test_rotation_of_the_space_and_scale_about_the_mean_do_not_matter(seed, scale):
    student, teacher = normal(seed, 20, 6).double(), normal(seed + 1, 20, 6).double()
    mean = normal(seed + 2, 6).double()
    expected = fidelity(student, teacher, mean)
    rotation, _ = torch.linalg.qr(normal(seed + 3, 6, 6).double())
    turned = fidelity(student @ rotation, teacher @ rotation, mean @ rotation)
    assert turned.centered == pytest.approx(expected.centered) and turned.plain == pytest.approx(expected.plain)
    scaled = fidelity(mean + scale * (student - mean), teacher, mean)
    assert scaled.centered == pytest.approx(expected.centered)


@settings(max_examples=30, deadline=None)
@given(seeds, st.lists(st.integers(1, 7), min_size=1, max_size=5))
def test_batches_add_up(seed, sizes):
    total = sum(sizes)
    student, teacher = normal(seed, total, 2, 2, 4), normal(seed + 1, total, 2, 2, 4)
    mean = mean_of(*teacher.split(sizes))
    assert torch.allclose(mean, teacher.double().mean(dim=(0, 1, 2)))
    meter = FidelityMeter(mean)
    for ours, theirs in zip(student.split(sizes), teacher.split(sizes), strict=True):
        meter.update(ours, theirs)
    parts, whole = meter.result(), fidelity(student, teacher, mean)
    assert parts.count == whole.count == total * 4
    assert parts.centered == pytest.approx(whole.centered, abs=1e-9)
    assert parts.plain == pytest.approx(whole.plain, abs=1e-9)


def test_zero_vector_counts_as_nothing():
    assert fidelity(torch.zeros(1, 3), torch.ones(1, 3), torch.zeros(3)).plain == 0.0


def test_what_cannot_be_judged_is_told():
    with pytest.raises(RadioplatError, match="no training image"):
        TeacherMean().mean  # noqa: B018
    with pytest.raises(RadioplatError, match="no held-out image"):
        FidelityMeter(torch.zeros(2)).result()
    with pytest.raises(RadioplatError, match="the student's features are not finite"):
        fidelity(torch.full((1, 2), float("nan")), torch.ones(1, 2), torch.zeros(2))
    with pytest.raises(ValueError, match="do not fit"):
        fidelity(torch.ones(2, 4, 4, 3), torch.ones(2, 2, 2, 3), torch.zeros(3))
