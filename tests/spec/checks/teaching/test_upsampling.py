"""Rules of what makes a teacher's map finer, each by an example that breaks it and only it."""

from __future__ import annotations

import pytest

from radioplat.spec.checks.tasks.training_run import check
from radioplat.spec.loading.load import load_spec
from radioplat.spec.resolved.teacher import resolve_teachers

T = "distill.teacher[0]"
TASK = "train_upsampler"


def spec(*overrides: str, teachers: int = 1, **fields):
    """A spec whose teachers are upsampled, and right."""
    teacher = {
        "name": "a",
        "model": {"backbone": {"type": "test_vit"}},
        "pretrained_teacher_model_path": "vit.safetensors",
        "mode": "spatial",
        "loss_type": "MSE",
        "adaptor": "featsharp",
        "upsample_factor": 2,
        "upsampler_checkpoint": "upsampler.safetensors",
        **fields,
    }
    entries = [{**teacher, "name": name} for name in "ab"[:teachers]]
    return load_spec({"distill": {"teacher": entries}}, overrides)


def test_what_is_right():
    assert check(spec()) == check(spec(), TASK) == []
    (teacher,) = resolve_teachers(spec(f"{T}.input_size=96"))
    assert (teacher.upsample_factor, teacher.upsampler_checkpoint) == (2, "upsampler.safetensors")
    assert (teacher.view_size, teacher.view) == (192, "192")


@pytest.mark.parametrize(
    ("override", "where"),
    [
        (f"{T}.upsampler_checkpoint=null", f"{T}.upsampler_checkpoint"),
        (f"{T}.upsample_factor=1", f"{T}.upsample_factor"),
        (f"{T}.upsample_factor=3", f"{T}.upsample_factor"),
        (f"{T}.adaptor=FeatSharp", f"{T}.adaptor"),
        (f"{T}.mode=summary", f"{T}.adaptor"),
    ],
)
def test_for_a_distillation(override, where):
    assert [p.where for p in check(spec(override))] == [where]


@pytest.mark.parametrize("field", ["upsample_factor=2", "upsampler_checkpoint=a.safetensors"])
def test_nothing_is_ignored_without_an_adaptor(field):
    found = check(spec(f"{T}.{field}", adaptor=None, upsample_factor=1, upsampler_checkpoint=None))
    assert [p.where for p in found] == [f"{T}.{field.partition('=')[0]}"] and "featsharp" in found[0].hint


def test_switched_off_nothing_is_needed():
    off = spec(f"{T}.do_upsample=false", f"{T}.upsampler_checkpoint=null", f"{T}.mode=summary")
    assert check(off) == []
    (teacher,) = resolve_teachers(off)
    assert (teacher.upsample_factor, teacher.view_size) == (1, teacher.input_size)


@pytest.mark.parametrize(
    ("override", "where"),
    [
        ("train_upsampler.teacher=nobody", "train_upsampler.teacher"),
        ("train_upsampler.window=4", "train_upsampler.window"),
        ("train_upsampler.heads=3", "train_upsampler.heads"),
        ("train_upsampler.upsample_factor=3", "train_upsampler.upsample_factor"),
        ("train_upsampler.upsample_factor=4", "train_upsampler.upsample_factor"),
        (f"{T}.upsample_factor=3", f"{T}.upsample_factor"),
        ("distill.teacher=[]", "distill.teacher"),
    ],
)
def test_for_the_training(override, where):
    assert {p.where for p in check(spec(override), TASK)} == {where}


def test_which_teacher():
    assert [p.where for p in check(spec(teachers=2), TASK)] == ["train_upsampler.teacher"]
    assert check(spec("train_upsampler.teacher=b", teachers=2), TASK) == []


def test_what_it_will_write_may_be_named_already_or_not():
    bare = spec(adaptor=None, upsample_factor=1, upsampler_checkpoint=None)
    assert check(bare, TASK) == [] == check(spec(f"{T}.mode=summary"), TASK)
