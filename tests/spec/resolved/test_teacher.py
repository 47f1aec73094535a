"""What each teacher is asked for once the global fields have been inherited."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radioplat.spec.loading.load import load_spec
from radioplat.spec.resolved.image_sizes import drawn_sizes
from radioplat.spec.resolved.teacher import MATCHED, resolve_teachers, teacher_names
from radioplat.spec.schema.distill import LossType, Mode, SpatialLoss, SummaryLoss, TeacherConfig
from radioplat.spec.schema.model import BackboneConfig, ModelConfig
from radioplat.spec.schema.root import Spec

EXAMPLE = Path(__file__).parents[3] / "specs" / "radio_two_teachers.yaml"


def one(distill: dict | None = None, **teacher):
    spec = load_spec({"distill": {**(distill or {}), "teacher": [teacher]}})
    return resolve_teachers(spec)[0]


def test_the_published_example():
    first, second = resolve_teachers(load_spec(EXAMPLE))
    assert (first.input_size, second.input_size) == (432, 224)
    assert (first.view, second.view) == ("432", "224")
    assert first.wanted == {"spatial"} and second.wanted == {"summary"}
    assert first.terms[0].loss is LossType.BALANCED and first.loss_lambda == second.loss_lambda == 0.5
    assert second.norm_mean == (0.5, 0.5, 0.5)
    assert first.weights == "/weights/teacher_dinov2.pth"
    assert (first.hidden, first.num_inner) == (0, 0)
    assert first.where == "distill.teacher[0]"


@pytest.mark.parametrize(
    ("loss", "mode"),
    [
        ("CE", "logits"),
        ("KL", "logits"),
        ("BALANCED", "spatial"),
        ("MSE", "spatial"),
        ("L1", "summary"),
        ("L2", "summary"),
        ("FD", "summary"),
        ("CS", "summary"),
        ("smooth_l1", "summary"),
        ("dampened_mse", "spatial"),
        ("gram", "spatial"),
        ("channel_kl", "spatial"),
        ("attention", "spatial"),
        ("rkd_distance", "summary"),
        ("rkd_angle", "summary"),
        ("angle", "summary"),
        ("tangent_sphere", "summary"),
    ],
)
def test_auto_mode_follows_the_loss(loss, mode):
    assert one({"loss_type": loss}).mode.value == mode
    # The teacher's own loss decides, not the global one.
    assert one({"loss_type": "KL"}, loss_type=loss).mode.value == mode


def test_unset_fields_inherit_and_set_ones_win():
    globally = {"loss_type": "CS", "mode": "combo", "loss_lambda": 0.25, "mlp_num_inner": 2}
    plain = one(globally)
    assert plain.mode is Mode.combo and plain.loss_lambda == 0.25 and plain.num_inner == 2
    own = one(globally, mode="summary", loss_lambda=0.0, loss_type="L1", spatial_num_inner=0)
    assert own.mode is Mode.summary and own.loss_lambda == 0.0 and (own.num_inner, own.spatial_num_inner) == (2, 0)
    assert [(t.kind, t.loss) for t in own.terms] == [("summary", LossType.L1)]
    assert one({"use_mlp": True}).hidden == 1024


def test_combo_has_two_weighted_terms():
    terms = one(
        mode="combo", loss_type="MSE", summary_loss_type="cosine", summary_loss_weight=3, fd_loss_weight=0.5
    ).terms
    assert [(t.kind, t.loss, t.weight) for t in terms] == [
        ("summary", LossType.CS, 3.0),
        ("spatial", LossType.MSE, 0.5),
    ]


BOTH = ["BALANCED", "similarity"]


@pytest.mark.parametrize(
    ("spec", "kinds", "losses"),
    [
        ({}, ["summary"] * 2 + ["spatial"] * 2, BOTH * 2),
        ({"distill.teacher[0].mode": "spatial"}, ["spatial"] * 2, BOTH),
        ({"dataset.batch_size": 1}, ["summary"] + ["spatial"] * 2, ["BALANCED", *BOTH]),
        ({"dataset.num_classes": 3}, ["logits"], ["KL"]),
        ({"dataset.num_classes": 3, "distill.mode": "summary"}, ["summary"] * 2, BOTH),
        ({"distill.mode": "logits"}, ["logits"], ["KL"]),
        ({"distill.teacher[0].spatial_loss_type": "gram"}, ["summary"] * 2 + ["spatial"], [*BOTH, "gram"]),
        ({"distill.mode": "combo", "distill.loss_type": "MSE"}, ["summary"] * 2 + ["spatial"], [*BOTH, "MSE"]),
    ],
)
def test_losses_that_a_spec_does_not_name(spec, kinds, losses):
    base = {"distill": {"teacher": [{"name": "t"}]}}
    found = resolve_teachers(load_spec(base, [f"{path}={value}" for path, value in spec.items()]))[0].terms
    assert [term.kind for term in found] == kinds and [term.loss.value for term in found] == losses
    assert len({term.name for term in found}) == len(found)
    assert all(term.where == term.field and term.field.endswith("loss_type") for term in found)


@pytest.mark.parametrize(
    ("name", "loss"), [(s, LossType[s.name]) for s in SummaryLoss if s.name in LossType.__members__]
)
def test_summary_losses_by_name(name, loss):
    terms = one(mode="combo", loss_type="MSE", summary_loss_type=name.value).terms
    assert [term.loss for term in terms] == [loss, LossType.MSE]


@pytest.mark.parametrize("name", SpatialLoss)
def test_spatial_losses_by_taos_names(name):
    same = {"mse": "MSE", "balanced": "BALANCED", "cosine": "CS"}
    found = one(mode="combo", loss_type="KL", summary_loss_type="CE", spatial_loss_type=name.value).terms[1]
    assert (found.loss.value, found.where) == (same.get(name.value, name.value), "distill.teacher[0].spatial_loss_type")


def test_extra_losses_come_behind_and_have_names_of_their_own():
    extra = [{"type": "gram", "kind": "spatial", "weight": 0.5}, {"type": "KL", "kind": "logits"}]
    teacher = one(mode="summary", loss_type="CS", extra_losses=extra, spatial_focal_weight=0.3)
    assert [(t.name, t.weight) for t in teacher.terms] == [("summary", 1), ("spatial_gram", 0.5), ("logits_KL", 1)]
    assert teacher.wanted == {"summary", "spatial", "logits"}
    assert [t.where for t in teacher.terms][1:] == [f"distill.teacher[0].extra_losses[{i}]" for i in range(2)]
    assert teacher.terms[1].focal == (0.3, 1.0, 4.0) and teacher.terms[2].focal is None


@pytest.mark.parametrize(
    ("teacher", "size"),
    [
        ({}, 96),
        ({"input_size": 432}, 432),
        ({"input_size": 432, "match_student_resolution": True}, 96),
        ({"input_size": 432, "match_student_resolution": False}, 432),
        ({"match_student_resolution": False}, 96),
    ],
)
def test_input_size(teacher, size):
    spec = load_spec({"dataset": {"img_size": 96}, "distill": {"teacher": [teacher]}})
    assert resolve_teachers(spec)[0].input_size == size


def test_empty_normalisation_is_the_datasets():
    augmentation = {"mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6]}
    spec = load_spec({"dataset": {"augmentation": augmentation}, "distill": {"teacher": [{}, {"norm_std": [1, 2, 3]}]}})
    first, second = resolve_teachers(spec)
    assert (first.norm_mean, first.norm_std) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    assert (second.norm_mean, second.norm_std) == ((0.1, 0.2, 0.3), (1.0, 2.0, 3.0))


def test_weights_from_either_field():
    backbone = {"backbone": {"pretrained_backbone_path": "/b.pth"}}
    assert one(model=backbone).weights == "/b.pth"
    assert one(model=backbone, pretrained_teacher_model_path="/a.pth").weights == "/a.pth"
    assert one().weights is None


def test_service_by_name():
    spec = load_spec({"distill": {"teacher": [{"name": "a"}, {"name": "b"}]}, "teachers": {"b": {"replicas": 3}}})
    assert [t.service.replicas for t in resolve_teachers(spec)] == [1, 3]


@given(
    st.lists(st.sampled_from(["a", "a_2", "a.b", "a b", "", "...", None]), max_size=8),
    st.sampled_from([None, "resnet18", "a"]),
)
def test_names_are_distinct_and_plain(names, kind):
    found = teacher_names([TeacherConfig(name=n, model=ModelConfig(BackboneConfig(type=kind))) for n in names])
    assert len(set(found)) == len(found) == len(names)
    assert all(name and "." not in name and " " not in name for name in found)


def test_an_attention_head_has_no_inner_blocks_unless_it_is_given_some():
    spec = {"distill": {"mlp_num_inner": 3, "teacher": [{"spatial_mlp_version": "attn"}, {"name": "b"}]}}
    first, second = resolve_teachers(load_spec(spec))
    assert (first.num_inner, first.spatial_num_inner, second.spatial_num_inner) == (3, 0, 3)
    (own,) = resolve_teachers(load_spec(spec, ["distill.teacher=[{spatial_mlp_version: attn, spatial_num_inner: 2}]"]))
    assert own.spatial_num_inner == 2


def test_global_batch():
    spec = Spec()
    spec.dataset.batch_size, spec.train.num_gpus, spec.train.num_nodes = 4, 2, 3
    assert spec.global_batch_size == 24 and spec.world_size == 6
    spec.train.global_batch_size = 8
    assert spec.global_batch_size == 8


def test_drawn_resolutions_merge_and_reach_who_matches_the_student():
    teachers = [
        {"name": "a", "stochastic_resolutions": {224: 0.5, 192: 0.5}},
        {"name": "b", "stochastic_resolutions": {192: 0.2, 256: 1.0}, "match_student_resolution": True},
        {"name": "c", "input_size": 384},
    ]
    spec = load_spec({"distill": {"teacher": teachers}})
    pairs = ((192, 0.25), (224, 0.25), (256, 0.5))
    assert drawn_sizes(spec) == pairs and drawn_sizes(Spec()) == ()
    a, b, c = resolve_teachers(spec)
    assert (a.sizes, b.sizes, c.sizes) == (pairs, pairs, ()) and (a.view, b.view, c.view) == (MATCHED, MATCHED, "384")
    scales = load_spec({"dataset": {"augmentation": {"multi_scales": [96, 64]}}})
    assert drawn_sizes(scales) == ((64, 0.5), (96, 0.5))
