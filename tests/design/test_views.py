"""Which views a run cuts: one a size, one a model under equivariance, and only where somebody looks."""

from __future__ import annotations

import pytest

from radioplat.data.views.equivariance import drawn_size
from radioplat.data.views.render import ViewSpec
from radioplat.design.models import design_models
from radioplat.design.views import run_views, size_fields
from radioplat.errors import SpecError
from radioplat.spec.loading.load import load_spec

VIT = {"backbone": {"type": "test_vit"}}
LITE = {"backbone": {"type": "tf_efficientnet_lite0"}}


def spec_of(teachers: list[dict], distill: dict | None = None, split: dict | None = None):
    kwargs = {"embed_dim": 16, "depth": 1, "num_heads": 2}
    entries = [{"mode": "spatial", "loss_type": "MSE", "model": VIT} | teacher for teacher in teachers]
    return load_spec(
        {
            "model": {"backbone": {"type": "c_radio_v3_vit_base_patch16_reg4_dinov2", "kwargs": kwargs}},
            "dataset": {"img_size": 64, "batch_size": 2, "train_dataset": split or {}},
            "train": {"global_batch_size": 8},
            "distill": {"teacher": entries, **(distill or {})},
        }
    )


def views_of(spec) -> dict[str, ViewSpec]:
    models = design_models(spec, "distill")
    return {v.name: v for v in run_views(spec, models.teachers, models.infos, models.student_stride)}


def test_a_view_for_each_size():
    views = views_of(spec_of([{"name": "a"}, {"name": "b", "input_size": 128}, {"name": "c", "input_size": 128}]))
    assert list(views.values()) == [ViewSpec("64", 64), ViewSpec("128", 128)]


def test_under_equivariance_a_view_for_each_model_moves_by_its_own_patches():
    split = {"shift_equivariance": True}
    views = views_of(spec_of([{"name": "a"}, {"name": "b", "model": LITE, "input_size": 96}], split=split))
    assert views == {
        "student": ViewSpec("student", 64, 16),
        "teacher a": ViewSpec("teacher a", 64, 16),
        "teacher b": ViewSpec("teacher b", 96, 32),
    }
    teachers = [{"name": "a", "stochastic_resolutions": {64: 1, 96: 1}}]
    views = views_of(spec_of(teachers, split=split))
    assert {(v.size, v.sizes) for v in views.values()} == {(96, ((64, 0.5), (96, 0.5)))}, "of one size, one draw"


def test_stages_and_partitions_say_who_looks_when_and_at_what_size():
    spec = spec_of(
        [{"name": "a"}, {"name": "b", "input_size": 128}, {"name": "c", "input_size": 256, "mosaic": 4}],
        {
            "partitions": [{"share": 0.25, "teachers": ["a"], "img_size": 96}, {"share": 0.75, "teachers": ["b", "c"]}],
            "stages": [{"steps": 2, "img_size": 48}, {"steps": 3, "teachers": ["a", "c"]}],
        },
    )
    views = views_of(spec)
    assert views.keys() == {"128", "matched"}
    assert size_fields(spec) == {
        48: "distill.stages[0].img_size",
        64: "dataset.img_size",
        96: "distill.partitions[0].img_size",
    }
    for step in range(5):
        micro_batches = range(4 * step, 4 * step + 4)
        found = sorted((drawn_size(views["matched"], 1, g), drawn_size(views["128"], 1, g)) for g in micro_batches)
        b = 128 if step < 2 else 0
        assert found == sorted([(96, 0)] + [(48 if step < 2 else 64, b)] * 3)


@pytest.mark.parametrize(
    ("teachers", "distill", "where", "words"),
    [
        ([{}], {"stages": [{"steps": 5}, {"steps": 5, "img_size": 70}]}, "distill.stages[1].img_size", "Take 64"),
        (
            [{}],
            {"partitions": [{"share": 0.5, "img_size": 40}, {"share": 0.5}]},
            "distill.partitions[0].img_size",
            "multiple of the student's patch 16",
        ),
        (
            [{}],
            {"partitions": [{"share": 0.5}, {"share": 0.5, "sizes": {64: 0.5, 40: 0.5}}]},
            "distill.partitions[1].sizes",
            "multiple of the student's patch 16",
        ),
        ([{"input_size": 112, "mosaic": 2}], {}, "distill.teacher[0].mosaic", "2 x 2 images of 64 do not fit into 112"),
        (
            [{"input_size": 256, "mosaic": 2, "model": LITE}],
            {"stages": [{"steps": 5, "img_size": 80}]},
            "distill.teacher[0].mosaic",
            "multiple of 32",
        ),
    ],
)
def test_sizes_that_do_not_divide(teachers, distill, where, words):
    with pytest.raises(SpecError) as caught:
        design_models(spec_of(teachers, distill), "distill")
    assert {p.where for p in caught.value.problems} == {where} and words in str(caught.value)


def test_a_size_that_a_teacher_cannot_take_is_named_where_it_stands():
    """The student's patch divides it, the teacher's does not; a teacher that never sees it does not mind."""
    kwargs = {"patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 2}
    partitions = [{"share": 0.5, "teachers": ["a"], "img_size": 72}, {"share": 0.5, "teachers": ["b"]}]
    spec = spec_of([{"name": "a"}, {"name": "b"}], {"partitions": partitions})
    spec.model.backbone.kwargs = kwargs
    with pytest.raises(SpecError, match="teacher a: 72 is not a multiple of the patch 16") as caught:
        design_models(spec, "distill")
    assert [p.where for p in caught.value.problems] == ["distill.partitions[0].img_size"]
    spec.distill.partitions[0].teachers, spec.distill.teacher[0].model.backbone.type = ["a"], "tf_efficientnet_lite0"
    assert design_models(spec, "distill").grids["b"] == (4, 4)


def test_what_is_drawn_is_one_view_without_a_plan():
    teachers = [{"name": "a", "stochastic_resolutions": {48: 0.3, 64: 0.3, 96: 0.4}}, {"name": "b", "input_size": 128}]
    found = views_of(spec_of(teachers))
    assert list(found.values()) == [ViewSpec("128", 128), ViewSpec("matched", 96, 1, ((48, 0.3), (64, 0.3), (96, 0.4)))]
