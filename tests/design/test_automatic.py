"""Settings that a spec leaves unset: decided by the pretrained weights, kept by later starts."""

from __future__ import annotations

import pytest
import timm
import torch
from safetensors.torch import save_file

from radioplat.design.automatic import SCRATCH_BATCHNORM_LR, SCRATCH_LR, decide
from radioplat.design.models import design_models, student_architecture
from radioplat.exporting.weights.export import export_weights
from radioplat.models.student.checkpoint import save_student
from radioplat.models.student.student import Student
from radioplat.spec.loading.load import load_spec
from radioplat.spec.schema.distill import LossType
from radioplat.spec.schema.export import ExportFormat
from radioplat.spec.schema.train import DEFAULT_LR

LITE = "tf_efficientnet_lite0"
FIELDS = ("distill.use_mlp", "model.backbone.student_norm_mean", "model.backbone.freeze_norm",
          "train.optim.head_warmup_epochs")  # fmt: skip
RATE = "train.optim.lr"
HALF = [0.5, 0.5, 0.5]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("weights")
    for name in (LITE, "test_vit"):
        torch.manual_seed(0)
        save_file(timm.create_model(name, num_classes=0).state_dict(), folder / f"{name}.safetensors")
    return folder


def spec_of(kind: str, *overrides: str):
    teacher = {"name": "t", "model": {"backbone": {"type": "test_vit"}}, "mode": "combo", "loss_type": "MSE",
               "summary_loss_type": "cosine"}  # fmt: skip
    return load_spec(
        {"distill": {"teacher": [teacher]}, "dataset": {"img_size": 64, "batch_size": 8}},
        [f"model.backbone.type={kind}", *overrides],
    )


def decided(earlier, kind: str, *overrides: str):
    """The values of FIELDS, and the decisions that are told to the user."""
    spec = spec_of(kind, *overrides)
    spec, told = decide(spec, student_architecture(spec, "distill", [], {}), earlier)
    optim, backbone = spec.train.optim, spec.model.backbone
    values = (spec.distill.use_mlp, backbone.student_norm_mean, backbone.freeze_norm, optim.head_warmup_epochs)
    return values, [decision.field for decision in told]


def weights(files, kind: str) -> str:
    return f"model.backbone.pretrained_backbone_path={files / kind}.safetensors"


def test_a_student_from_nothing_gets_a_rate_that_teaches_it():
    assert decided(None, LITE) == ((False, [], False, 0.0), [RATE])
    assert decided(None, LITE, "train.optim.lr=1e-5") == ((False, [], False, 0.0), [])


@pytest.mark.parametrize(
    ("kind", "override", "rate"),
    [
        (LITE, "dataset.batch_size=32", SCRATCH_BATCHNORM_LR),
        ("test_vit", "dataset.batch_size=32", SCRATCH_LR),
        (LITE, "dataset.batch_size=8", SCRATCH_BATCHNORM_LR / 2),  # square root of the batch
        (LITE, "train.global_batch_size=128", 2 * SCRATCH_BATCHNORM_LR),
        (LITE, "train.num_gpus=1024", 2 * SCRATCH_BATCHNORM_LR),  # nothing was measured beyond 128
        (LITE, "dataset.batch_size=1", SCRATCH_BATCHNORM_LR / 2),
        (LITE, "train.optim.optim=sgd", DEFAULT_LR),
        (LITE, "train.optim.lr=0.1", 0.1),
        (LITE, "weights", DEFAULT_LR),
        ("test_vit", "weights", DEFAULT_LR),
    ],
)
def test_the_rate_follows_the_start(files, kind, override, rate):
    overrides = [weights(files, kind) if override == "weights" else override] if override else []
    spec = spec_of(kind, *overrides)
    spec, _ = decide(spec, student_architecture(spec, "distill", [], {}), None)
    assert spec.train.optim.lr == rate
    # A later start of the run keeps it, whatever this version would choose.
    spec.train.optim.lr = 0.0123
    again = spec_of(kind, *overrides)
    again, told = decide(again, student_architecture(again, "distill", [], {}), spec)
    assert again.train.optim.lr == (0.1 if rate == 0.1 else 0.0123) and not told


def test_losses_that_the_spec_leaves_open_are_written_into_it():
    spec = spec_of(LITE, "distill.teacher[0].loss_type=null", "distill.teacher[0].extra_losses=[]")
    student = student_architecture(spec, "distill", [], {})
    settled, told = decide(spec, student, None)
    teacher = settled.distill.teacher[0]
    assert teacher.loss_type is LossType.BALANCED
    assert [(extra.type.value, extra.kind.value) for extra in teacher.extra_losses] == [("similarity", "spatial")]
    assert str(told[0]) == "distill.teacher[0].loss_type=BALANCED (and similarity: no loss is named)"
    teacher.loss_type = LossType.CS  # as if this version had another default than the one that the run began with
    assert decide(spec, student, settled)[0].distill == settled.distill


def test_pretrained_weights_decide(files):
    values, told = decided(None, LITE, weights(files, LITE))
    assert values == (False, HALF, True, 0.0)
    assert told == ["distill.use_mlp", *(f"model.backbone.student_norm_{p}" for p in ("mean", "std")), FIELDS[2]]
    values, _ = decided(None, "test_vit", weights(files, "test_vit"))
    assert values[0] is False and values[2] is False  # a ViT has no BatchNorm


@pytest.mark.parametrize(
    ("override", "index", "value"),
    [
        ("distill.use_mlp=true", 0, True),
        ("distill.mlp_hidden_size=64", 0, True),
        ("distill.teacher[0].spatial_mlp_version=attn", 0, True),
        ("dataset.augmentation.mean=[0.1,0.2,0.3]", 1, []),
        ("model.backbone.student_norm_std=[0.1,0.2,0.3]", 1, []),
        ("dataset.batch_size=32", 2, False),
        ("model.backbone.freeze_norm=false", 2, False),
        ("distill.head_fit.enabled=false", 3, 1.0),
        ("train.optim.head_warmup_epochs=2", 3, 2.0),
    ],
)
def test_what_the_spec_says_stands(files, override, index, value):
    values, told = decided(None, LITE, weights(files, LITE), override)
    assert values[index] == value
    assert [list((False, HALF, True, 0.0))[i] for i in range(4) if i != index] == [
        values[i] for i in range(4) if i != index
    ]
    assert all(override.partition("=")[0] != field for field in told)


@pytest.mark.parametrize("hidden", [True, False])
def test_heads_of_a_trained_student_keep_their_form(tmp_path, hidden):
    spec = spec_of(LITE, f"distill.use_mlp={hidden}", f"model.backbone.student_norm_mean={HALF}")
    student = Student(design_models(spec, "distill").architecture)
    (tmp_path / "trained").mkdir()
    save_student(student, student.state_dict(), tmp_path / "trained")
    values, told = decided(None, LITE, f"train.pretrained_model_path={tmp_path / 'trained'}")
    assert values == (hidden, HALF, False, 0.0)  # BatchNorm of a pruned student must be estimated again
    assert "distill.use_mlp" in told
    # Of a teacher with another name, or for its backbone alone, its heads are not loaded: others are fitted.
    for field in (
        f"train.pretrained_model_path={tmp_path / 'trained'}",
        f"model.backbone.pretrained_backbone_path={tmp_path / 'trained'}",
    ):
        other = [] if "backbone_path" in field else ["distill.teacher[0].name=other"]
        assert decided(None, LITE, field, *other)[0] == (False, HALF, False, 0.0)


def test_heads_of_a_radio_file_keep_their_form(radio_student, tmp_path):
    """They are MLPs; a linear head for the same teacher would start anew."""
    file = tmp_path / "radio.pth.tar"
    export_weights(radio_student(), ExportFormat.radio, file, height=48, width=48)
    for name, mlp in (("clip", True), ("other", False)):
        fields = (f"train.pretrained_model_path={file}", f"distill.teacher[0].name={name}", "dataset.img_size=48")
        values, told = decided(None, "radio", *fields)
        assert values[0] is mlp and "distill.use_mlp" in told
        assert values[1] == pytest.approx([0.4, 0.5, 0.6])


def test_a_later_start_keeps_what_the_first_decided(files):
    """Also that of a version in which these fields had values."""
    before = spec_of(LITE, "distill.use_mlp=true", "model.backbone.freeze_norm=false",
                     "dataset.augmentation.mean=[0.485,0.456,0.406]", "dataset.augmentation.std=[0.229,0.224,0.225]",
                     "train.optim.head_warmup_epochs=0.5")  # fmt: skip
    assert decided(before, LITE, weights(files, LITE)) == ((True, [0.485, 0.456, 0.406], False, 0.5), [])
    spec = spec_of(LITE, weights(files, LITE), "distill.use_mlp=false")
    settled, _ = decide(spec, student_architecture(spec, "distill", [], {}), before)
    assert settled.distill.use_mlp is False  # what the spec says now stands
