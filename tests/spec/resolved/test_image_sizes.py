"""At what size the student sees images, from stage to stage and from partition to partition."""

from __future__ import annotations

import math

import pytest
import yaml

from radioplat.errors import SpecError
from radioplat.spec.loading.load import load_spec, to_yaml
from radioplat.spec.resolved.image_sizes import (
    FOREVER,
    changes_by_plan,
    draw_at,
    sizes_seen_with,
    stages_of,
    student_sizes,
)
from radioplat.spec.resolved.teacher import MATCHED, STUDENT, resolve_teachers, student_view

TEACHERS = [{"name": "a"}, {"name": "b", "input_size": 512}, {"name": "c", "input_size": 1024, "mosaic": 4}]
HALVES = [{"share": 0.5, "teachers": ["a"], "img_size": 192}, {"share": 0.5, "teachers": ["b"]}]


def spec_of(teachers=TEACHERS, dataset=None, **distill):
    return load_spec({"distill": {"teacher": teachers, **distill}, "dataset": dataset or {}})


def test_a_spec_without_stages_has_one_for_ever():
    spec = spec_of()
    assert [(s.first, s.stop) for s in stages_of(spec)] == [(0, FOREVER)]
    assert student_sizes(spec) == () and not changes_by_plan(spec) and student_view(spec) == "224"
    assert draw_at(spec, stages_of(spec)[0], None) == ((224, 1.0),)


def test_stages_lie_end_to_end():
    spec = spec_of(stages=[{"steps": 300, "img_size": 256, "teachers": ["a"]}, {"steps": 100, "lr": 0.1}])
    first, second = stages_of(spec)
    assert (first.first, first.stop, second.first, second.stop) == (0, 300, 300, 400)
    assert first.has("a") and not first.has("b") and second.has("b")
    assert (second.img_size, second.lr) == (None, 0.1)
    assert student_sizes(spec) == ((224, 0.25), (256, 0.75)) and student_view(spec) == MATCHED
    assert sizes_seen_with(spec, "b") == ((224, 1.0),), "it is not asked in the first stage"
    assert draw_at(spec, first, None) == ((256, 1.0),)


def test_a_partition_goes_before_its_stage_and_the_draw():
    teachers = [{**TEACHERS[0], "stochastic_resolutions": {224: 1, 256: 1}}, *TEACHERS[1:]]
    spec = spec_of(teachers, partitions=HALVES)
    stage = stages_of(spec)[0]
    assert draw_at(spec, stage, spec.distill.partitions[0]) == ((192, 1.0),)
    assert draw_at(spec, stage, spec.distill.partitions[1]) == ((224, 0.5), (256, 0.5))
    assert student_sizes(spec) == ((192, 0.5), (224, 0.25), (256, 0.25))
    assert sizes_seen_with(spec, "a") == ((192, 1.0),)
    assert sizes_seen_with(spec, "c") == student_sizes(spec), "no partition names it: it sees all"
    a, b, c = resolve_teachers(spec)
    assert (a.sizes, a.view) == (((192, 1.0),), MATCHED) and (b.sizes, b.view) == ((), "512")
    assert (c.sizes, c.view, c.mosaic, c.input_size) == ((), MATCHED, 4, 1024), "made of what the student sees"


def test_under_equivariance_every_model_has_a_view_of_its_own():
    for name in ("shift_equivariance", "full_equivariance"):
        spec = spec_of(dataset={"train_dataset": {name: True}, "img_size": 512})
        assert student_view(spec) == STUDENT
        assert [t.view for t in resolve_teachers(spec)] == ["teacher a", "teacher b", STUDENT]


@pytest.mark.parametrize(("batch", "pictures"), [(1, 1), (16, 1), (17, 2), (64, 4)])
def test_a_forward_of_a_mosaic_has_a_batch_of_pictures(batch, pictures):
    spec = spec_of(dataset={"batch_size": batch})
    assert [t.service.max_batch for t in resolve_teachers(spec)] == [batch, batch, pictures]


def test_sizes_with_probabilities_are_drawn_in_proportion_to_them():
    """TAO's form and default, where the probabilities are made to add up to 1."""
    scales = [{224: 0.1}, {256: 0.2}, {288: 0.3}, {320: 0.6}, {320: 0.8}]
    spec = spec_of(dataset={"augmentation": {"multi_scales": scales}})
    assert student_sizes(spec) == ((224, 0.05), (256, 0.1), (288, 0.15), (320, 0.7))
    assert load_spec(yaml.safe_load(to_yaml(spec))) == spec


@pytest.mark.parametrize(
    ("scales", "place"),
    [
        ([224, "large"], "[1]"),
        ([224, {256: 0.5}], ""),
        ([{256: 0.5}, {"large": 0.5}], "[1]"),
        ([{256: "often"}], "[0]"),
        ([224, True], "[1]"),
        ([[224, 0.5]], "[0]"),
        ([224, None], "[1]"),
    ],
)
def test_what_is_no_size_is_refused_by_its_place(scales, place):
    with pytest.raises(SpecError) as caught:
        spec_of(dataset={"augmentation": {"multi_scales": scales}}, partitions=[{"share": 1, "sizes": scales}])
    places = [f"dataset.augmentation.multi_scales{place}", f"distill.partitions[0].sizes{place}"]
    assert [p.where for p in caught.value.problems] == places


@pytest.mark.parametrize("sizes", [0, False, "", "large", {"large": 1}, {256: "often"}, {256: -1}, {256: math.nan}])
def test_sizes_of_a_partition_that_are_none(sizes):
    with pytest.raises(SpecError) as caught:
        spec_of(partitions=[{"share": 1, "sizes": sizes}])
    (problem,) = caught.value.problems
    assert problem.where.removesuffix(".256") == "distill.partitions[0].sizes"


@pytest.mark.parametrize("sizes", [{512: 0.75, 256: 0.25}, [{256: 1}, {512: 1}, {512: 2}], [{256: 1, 512: 3}]])
def test_a_partition_draws_its_own_sizes(sizes):
    """Half of the micro-batches are of this partition, and a stage has a size for the others."""
    partitions = [{"share": 0.5, "teachers": ["a"], "sizes": sizes}, {"share": 0.5, "teachers": ["b"]}]
    spec = spec_of(partitions=partitions, stages=[{"steps": 300, "img_size": 192}, {"steps": 100}])
    first, second = stages_of(spec)
    assert changes_by_plan(spec) and changes_by_plan(spec_of(partitions=partitions))
    for stage, other in ((first, 192), (second, 224)):
        assert draw_at(spec, stage, spec.distill.partitions[0]) == ((256, 0.25), (512, 0.75))
        assert draw_at(spec, stage, spec.distill.partitions[1]) == ((other, 1.0),)
    assert sizes_seen_with(spec, "a") == ((256, 0.25), (512, 0.75)), "teachers without input_size see these"
    assert student_sizes(spec) == ((192, 0.375), (224, 0.125), (256, 0.125), (512, 0.375))
    a, b, c = resolve_teachers(spec)
    assert (a.sizes, b.sizes, b.view, c.view) == (((256, 0.25), (512, 0.75)), (), "512", MATCHED)
    assert load_spec(yaml.safe_load(to_yaml(spec))) == spec
