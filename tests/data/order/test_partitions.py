"""Which micro-batch has which size: keyed, whole, and the same wherever it is asked."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2_contingency, chisquare

from radioplat.data.order.micro_batch_schedule import PADDING, MicroBatchSchedule
from radioplat.data.order.partitions import Stretch, draw_at, partition_of
from radioplat.data.views.equivariance import drawn_size
from radioplat.data.views.render import ViewSpec
from radioplat.data.views.view_plan import Equivariance, Recipe
from radioplat.spec.schema.dataset import AugmentationConfig

SMALL, LARGE, NONE = ((32, 1.0),), ((64, 1.0),), ()
PLAN = (
    tuple(Stretch(0, 7, ((4, SMALL),))),
    tuple(Stretch(3, 7, ((1, LARGE), (3, SMALL)))),
    tuple(Stretch(5, 7, ((1, LARGE), (3, NONE)))),
)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(0, 2**40), st.integers(0, 2**31))
@settings(max_examples=50, deadline=None)
def test_a_step_has_every_partition_as_often_as_it_should(counts, seed, step):
    found = partition_of(seed, step, counts)
    assert np.bincount(found, minlength=len(counts)).tolist() == counts
    assert (found == partition_of(seed, step, counts)).all()


def test_sizes_follow_stretch_and_partition():
    view = ViewSpec("v", 64, plan=PLAN)
    sizes = np.array([drawn_size(view, 1, micro_batch) for micro_batch in range(4 * 8)]).reshape(8, 4)
    assert (sizes[:3] == 32).all()
    for step in range(3, 8):
        large = partition_of(7, step, [1, 3]) == 0
        assert (sizes[step] == np.where(large, 64, 32 if step < 5 else 0)).all()
    assert draw_at(PLAN, 4 * 10**6 + 3) in (LARGE, NONE)


def test_what_is_drawn_inside_a_plan_is_drawn_alike_by_all():
    pairs = ((32, 0.5), (64, 0.5))
    plan = (tuple(Stretch(0, 7, ((1, pairs), (1, LARGE)))),)
    student, teacher = (ViewSpec(name, 64, plan=plan) for name in ("student", "teacher"))
    plain = ViewSpec("plain", 64, sizes=pairs)
    for micro_batch in range(60):
        drawn = draw_at(plan, micro_batch) == pairs
        assert drawn_size(student, 3, micro_batch) == drawn_size(teacher, 3, micro_batch)
        assert drawn_size(student, 3, micro_batch) == (drawn_size(plain, 3, micro_batch) if drawn else 64)


@pytest.mark.parametrize("seed", [3, 1234])
def test_sizes_come_as_often_as_they_should_and_at_any_number_of_workers(seed):
    """Chi-square tests of the shares, over all micro-batches and over one place of each step, and of independence.

    The sizes are those of C-RADIOv4 (arXiv 2601.17237): one partition of low, one of high resolution.
    """
    low, high = (128, 192, 224, 256, 384, 432), (512, 768, 1024, 1152)
    chances = {512: 0.1, 768: 0.2, 1024: 0.3, 1152: 0.4}
    parts = ((6, tuple((size, 1 / 6) for size in low)), (2, tuple(chances.items())))
    view = ViewSpec("matched", 1152, plan=(tuple(Stretch(0, seed, parts)),))
    steps = 2000
    drawn = np.array([drawn_size(view, seed, micro_batch) for micro_batch in range(8 * steps)])
    of_low = np.concatenate([partition_of(seed, step, [6, 2]) for step in range(steps)]) == 0
    assert (np.isin(drawn, low) == of_low).all() and of_low.sum() == 6 * steps
    for place in (slice(None), slice(0, None, 8), slice(7, None, 8)):
        here, where = drawn[place], of_low[place]
        for sizes, weights, mine in ((low, [1 / 6] * 6, where), (high, [*chances.values()], ~where)):
            counts = [int((here[mine] == size).sum()) for size in sizes]
            assert chisquare(counts, np.array(weights) * mine.sum()).pvalue > 0.001, (counts, place)
    chosen = (drawn[of_low][:, None] == low).astype(int)
    table = chosen[:-1].T @ chosen[1:]
    assert chi2_contingency(table).pvalue > 0.001, "the next size does not depend on the one before"
    for world in (1, 2, 3, 5, 8):
        schedule = MicroBatchSchedule(8, world)
        for step in (0, 7, steps - 1):
            by_rank = [m for rank in range(world) for m in schedule.of_rank(step, rank) if m != PADDING]
            assert {m: drawn_size(view, seed, m) for m in by_rank} == dict(enumerate(drawn[8 * step :][:8], 8 * step))


def test_a_view_that_nobody_needs_is_not_made():
    views = [ViewSpec("student", 32), ViewSpec("teacher", 64, plan=PLAN)]
    side, position = np.full(2, 80), np.arange(2)
    for equivariance in Equivariance:
        recipe = Recipe(views, AugmentationConfig(), 3, equivariance)
        shapes = [
            {name: view.pixels.shape for name, view in recipe.plan(micro_batch, side, side, position).views().items()}
            for micro_batch in range(20, 24)
        ]
        with_teacher = [found for found in shapes if "teacher" in found]
        assert [found["student"] for found in shapes] == [(2, 3, 32, 32)] * 4
        assert [found["teacher"] for found in with_teacher] == [(2, 3, 64, 64)]
    assert Recipe(views, None, 3).plan(22, side, side, position).views().keys() == {"student", "teacher"}
