"""Operations for one image: of the student and its heads, and of teachers by place, sizes and share of the images."""

from __future__ import annotations

import pytest

from radioplat.design.models import design_models
from radioplat.design.student import build_on_meta
from radioplat.design.workload.work import seen_share, work_of
from radioplat.models.flops import forward_flops
from radioplat.spec.loading.load import load_spec
from radioplat.teachers.base.flops import teacher_flops

WIDTH, SIZE = 32, 64
KWARGS = {"embed_dim": WIDTH, "depth": 2, "num_heads": 2, "patch_size": 8}
STUDENT = {"type": "radio_vit_tiny_patch16", "kwargs": KWARGS}
VIT = {"model": {"backbone": {"type": "test_vit"}}, "loss_type": "MSE"}


def spec_of(*overrides: str):
    teachers = [{**VIT, "name": "a", "mode": "spatial"}, {**VIT, "name": "b", "mode": "summary"}]
    tree = {
        "model": {"backbone": STUDENT},
        "dataset": {"img_size": SIZE, "batch_size": 4},
        "train": {"global_batch_size": 16},
        "distill": {"use_mlp": False, "teacher": teachers},
    }
    return load_spec(tree, list(overrides))


def work(*overrides: str, on_ray: bool = True):
    spec = spec_of(*overrides)
    return work_of(spec, design_models(spec, "distill"), on_ray)


def parts(*overrides: str) -> tuple[int, int]:
    """Forward operations of the backbone, and of the heads by their widths: one map head, one summary head."""
    spec = spec_of(*overrides)
    models = design_models(spec, "distill")
    student = build_on_meta(models.architecture).eval()
    wanted = frozenset({"summary", "spatial"})
    backbone = forward_flops(student, lambda images: student.backbone(images, wanted), spec.dataset.img_size)
    positions = (spec.dataset.img_size // 8) ** 2
    heads = 2 * WIDTH * (positions * models.infos["a"].spatial_dim + models.infos["b"].summary_dim)
    return backbone, heads


def test_a_student_is_counted_three_times():
    backbone, heads = parts()
    found = work()
    assert found.student == 3 * (backbone + heads) and found.recomputed == 0 and not found.inner
    assert found.of_worker == found.student  # teachers are in actors
    frozen = work("model.backbone.freeze_backbone=true")
    assert frozen.student == backbone + 3 * heads
    again = work("train.grad_checkpointing=true")
    assert (again.student, again.recomputed) == (found.student, backbone)


def test_teachers_are_where_they_run():
    spec = spec_of()
    once = teacher_flops(design_models(spec, "distill").teachers[0])
    assert once > 0 and work().outer == {"a": once, "b": pytest.approx(once, rel=0.01)}
    inline = work("teachers.a.placement=inline")
    assert inline.inline == {"a": once} and list(inline.outer) == ["b"]
    assert inline.of_worker == inline.student + once
    assert list(work(on_ray=False).inline) == ["a", "b"] and not work(on_ray=False).outer
    assert list(work("teachers.a.pool=lab", on_ray=False).outer) == ["a"]


def test_drawn_sizes_count_by_their_chance():
    small, large = (work(f"dataset.img_size={size}") for size in (64, 96))
    drawn = work("dataset.augmentation.multi_scales=[{64: 0.75}, {96: 0.25}]")
    assert drawn.student == pytest.approx(0.75 * small.student + 0.25 * large.student)
    assert drawn.outer["a"] == pytest.approx(0.75 * small.outer["a"] + 0.25 * large.outer["a"])
    fixed = work("dataset.augmentation.multi_scales=[{64: 0.75}, {96: 0.25}]", "distill.teacher[0].input_size=64")
    assert fixed.outer["a"] == pytest.approx(small.outer["a"])


def test_a_teacher_that_sees_less_computes_less():
    parts = "distill.partitions=[{share: 0.25, teachers: [a]}, {share: 0.75, teachers: [b]}]"
    whole, split = work(), work(parts)
    assert split.outer == {"a": pytest.approx(whole.outer["a"] / 4), "b": pytest.approx(whole.outer["b"] * 0.75)}
    stages = "distill.stages=[{steps: 10, teachers: [a]}, {steps: 30}]"
    assert (seen_share(spec_of(stages), "a"), seen_share(spec_of(stages), "b")) == (1.0, 0.75)
    assert seen_share(spec_of(parts), "a") == pytest.approx(0.25) and seen_share(spec_of(), "a") == 1


def test_a_mosaic_shows_several_images_at_once():
    mosaic = work("distill.teacher[0].mosaic=2", "distill.teacher[0].input_size=128")
    whole = work("distill.teacher[0].input_size=128")
    assert mosaic.outer["a"] == pytest.approx(whole.outer["a"] / 4)


def test_an_ensemble_computes_every_member(tmp_path):
    one = work().outer["a"]
    files = [str(tmp_path / name) for name in ("1", "2", "3")]
    assert work(f"distill.teacher[0].ensemble={files}").outer["a"] == 3 * one


def test_teachers_inside_the_step_are_the_workers_work():
    backbone, _ = parts()
    mesa = work("distill.mesa={weight: 1.0}")
    assert mesa.inner == {"mesa": backbone}
    assert mesa.of_worker == mesa.student + backbone
