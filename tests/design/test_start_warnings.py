"""What is said of a student that begins with what it would unlearn."""

from __future__ import annotations

import pytest
import timm
import torch
from safetensors.torch import save_file

from radioplat.design.models import design_models
from radioplat.design.start_warnings import start_warnings
from radioplat.models.pretrained.initial_weights import start_notes
from radioplat.models.student.checkpoint import save_student
from radioplat.models.student.student import Student
from radioplat.spec.loading.load import load_spec

BACKBONE, MODEL = "model.backbone.pretrained_backbone_path", "train.pretrained_model_path"
WARMUP, FIT = "train.optim.head_warmup_epochs", "distill.head_fit.enabled"
RANDOM = f"{FIT}=false"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """made(kind, *overrides) -> warnings of a student of ``kind`` that one teacher, ``t``, teaches."""
    folder = tmp_path_factory.mktemp("weights")
    for name in ("tf_efficientnet_lite0", "test_vit"):
        torch.manual_seed(0)
        save_file(timm.create_model(name, num_classes=0).state_dict(), folder / f"{name}.safetensors")

    def found(kind: str, *overrides: str, place=BACKBONE, path=None) -> list[str]:
        fields = [f"model.backbone.type={kind}", f"{place}={path or folder / f'{kind}.safetensors'}"]
        teacher = {"name": "t", "model": {"backbone": {"type": "test_vit"}}, "mode": "combo", "loss_type": "MSE"}
        spec = load_spec({"distill": {"teacher": [teacher]}, "dataset": {"img_size": 64}}, [*fields, *overrides])
        return start_warnings(spec, design_models(spec, "distill").architecture)

    return found


NORM = ("model.backbone.student_norm_mean=[0.5,0.5,0.5]", "model.backbone.student_norm_std=[0.5,0.5,0.5]")


def test_both_are_named_with_field_and_value(made):
    heads, norm = made("tf_efficientnet_lite0", RANDOM)
    assert heads.startswith(f"{FIT} is false: ") and "the heads of t from random ones" in heads
    assert f"or set {WARMUP} to 1:" in heads
    assert norm.startswith(f"{BACKBONE}: it was trained on images normalised otherwise")
    assert (
        "model.backbone.student_norm_mean=[0.5, 0.5, 0.5] and model.backbone.student_norm_std=[0.5, 0.5, 0.5]" in norm
    )


@pytest.mark.parametrize(
    ("overrides", "left"),
    [
        ((), ["normalised"]),
        ((RANDOM, f"{WARMUP}=1"), ["normalised"]),
        ((RANDOM, "model.backbone.freeze_backbone=true"), ["normalised"]),
        ((RANDOM, *NORM), [WARMUP]),
        ((RANDOM, "dataset.augmentation.mean=[0.5,0.5,0.5]", "dataset.augmentation.std=[0.5,0.5,0.5]"), [WARMUP]),
        ((RANDOM, f"{WARMUP}=0.5", *NORM), []),
        ((RANDOM, "train.resume_training_checkpoint_path=/elsewhere/model_epoch_001_step_00004"), []),
        ((RANDOM, "train.num_epochs=1", *NORM), [f"{WARMUP} to 0.5: "]),
    ],
)
def test_each_goes_away_with_its_cure(made, overrides, left):
    found = made("tf_efficientnet_lite0", *overrides)
    assert len(found) == len(left) and all(part in line for part, line in zip(left, found, strict=True))


@pytest.mark.parametrize(("kind", "count"), [("efficientnet_b0", 0), ("efficientnet_b0.ra4_e3600_r224_in1k", 1)])
def test_weights_of_unknown_tag_are_judged_only_where_all_tags_agree(made, kind, count, tmp_path):
    """timm has weights of EfficientNet-B0 that were trained on either normalisation."""
    save_file(timm.create_model("efficientnet_b0", num_classes=0).state_dict(), tmp_path / "b0.safetensors")
    assert len(made(kind, f"{WARMUP}=1", path=tmp_path / "b0.safetensors")) == count


@pytest.mark.skipif(torch.cuda.is_available(), reason="its memory decides there")
@pytest.mark.parametrize(
    ("overrides", "found"),
    [
        (("train.zero_stage=2",), 0),
        (("train.zero_stage=3",), 1),
        (("train.zero_stage=3", "train.resume_training_checkpoint_path=/elsewhere/model_epoch_001_step_00004"), 1),
    ],
)
def test_stage_3_without_need_is_a_warning(overrides, found):
    spec = load_spec(None, ["model.backbone.type=test_vit", "dataset.img_size=64", *overrides])
    lines = start_warnings(spec, design_models(spec, "train").architecture)
    assert len(lines) == found and all("at stage 2 weights, gradients and optimizer take" in line for line in lines)


@pytest.mark.parametrize(("room", "warns"), [(0.9, False), (1.1, True)])
def test_stage_3_is_needed_if_stage_2_exceeds_the_room(monkeypatch, room, warns):
    spec = load_spec(None, ["model.backbone.type=test_vit", "dataset.img_size=64", "train.zero_stage=3"])
    architecture = design_models(spec, "train").architecture
    parameters = sum(p.numel() for p in Student(architecture).parameters())
    monkeypatch.setattr("radioplat.design.start_warnings._room", lambda: (room * 20 * parameters, "room of a test"))
    assert len(start_warnings(spec, architecture)) == warns


def test_what_starts_from_nothing_has_nothing_to_lose(made):
    spec = load_spec(None, ["model.backbone.type=test_vit", "dataset.img_size=64"])
    assert start_warnings(spec, design_models(spec, "train").architecture) == []


def test_heads_that_come_with_the_weights_are_not_new(made, tmp_path):
    """A checkpoint of our own has heads by teacher's name, and the normalisation that it saw."""
    teacher = {"name": "t", "model": {"backbone": {"type": "test_vit"}}, "mode": "combo", "loss_type": "MSE"}
    spec = load_spec(
        {"distill": {"teacher": [teacher]}, "dataset": {"img_size": 64}},
        ["model.backbone.type=tf_efficientnet_lite0", *NORM],
    )
    student = Student(design_models(spec, "distill").architecture)
    save_student(student, student.state_dict(), tmp_path)
    kind = "tf_efficientnet_lite0"
    assert made(kind, RANDOM, *NORM, place=MODEL, path=tmp_path) == []
    assert [WARMUP in line for line in made(kind, RANDOM, *NORM, place=BACKBONE, path=tmp_path)] == [True]
    renamed = made(kind, RANDOM, "distill.teacher[0].name=other", *NORM, place=MODEL, path=tmp_path)
    assert len(renamed) == 1 and "the heads of other" in renamed[0]
    spec = load_spec(spec, [f"{MODEL}={tmp_path}", "model.backbone.student_norm_mean=[]"])
    (note,) = start_notes(spec, design_models(spec, "distill").architecture)
    assert "model.backbone.student_norm_mean=[0.5, 0.5, 0.5]" in note


@pytest.mark.parametrize(
    ("kind", "overrides", "warned"),
    [
        ("resnet18", ("dataset.batch_size=4",), True),
        ("resnet18", ("dataset.batch_size=8",), False),
        ("resnet18", ("dataset.batch_size=4", "model.backbone.freeze_norm=true"), False),
        ("resnet18", ("dataset.batch_size=4", "model.backbone.kwargs={norm_layer: groupnorm}"), False),
        ("test_vit", ("dataset.batch_size=4",), False),
    ],
)
def test_batchnorm_of_a_few_images_is_named(made, kind, overrides, warned):
    found = [line for line in made(kind, f"{BACKBONE}=null", *overrides) if "BatchNorm" in line]
    assert bool(found) == warned
    assert all(line.startswith("dataset.batch_size is 4") and "norm_layer: groupnorm" in line for line in found)
