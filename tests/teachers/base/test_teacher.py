"""A frozen teacher says what it is, gives what is asked, and nothing else."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

from radioplat.errors import SpecError, WeightsError
from radioplat.models.heads import HeadArchitecture
from radioplat.models.student.checkpoint import save_student
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.teachers.base.teacher import FrozenTeacher, check_weights, compute_dtype, describe, has_native_bf16

BOTH = frozenset({"summary", "spatial"})
NORM = dict(norm_mean=[0.4, 0.5, 0.6], norm_std=[0.2, 0.3, 0.4])
ARCHITECTURE = StudentArchitecture(
    "c_radio_v3_vit_base_patch16_reg4_dinov2",
    dict(embed_dim=16, depth=1, num_heads=2, patch_size=8),
    num_class_tokens=2,
    img_size=32,
    num_classes=5,
    heads=(HeadArchitecture("old", 4),),
)


def pixels(size: int = 64) -> torch.Tensor:
    return torch.randint(0, 256, (2, 3, size, size), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def checkpoint(tmp_path):
    """A student of ours with a classifier, saved, and the student."""
    torch.manual_seed(0)
    student = Student(ARCHITECTURE).eval()
    save_student(student, student.state_dict(), tmp_path)
    return tmp_path, student


@pytest.mark.parametrize("name", ["test_resnet", "test_efficientnet", "test_vit", "test_convnext"])
@pytest.mark.parametrize("size", [64, 96, 100])
def test_what_is_described_is_what_is_given(name, size, timm_teacher):
    teacher, model = timm_teacher(name, size, classes=7, mode="combo", loss_type="MSE")
    if name == "test_vit" and size % 16:
        with pytest.raises(SpecError, match="multiple of the patch") as caught:
            describe(teacher)
        assert (
            caught.value.problems[0].where == "distill.teacher[0].input_size" and "96" in caught.value.problems[0].hint
        )
        return
    info = describe(teacher)
    features = FrozenTeacher(teacher)(pixels(size), teacher.wanted)
    assert features.summary.shape == (2, info.summary_dim)
    assert features.spatial.shape == (2, *info.grid, info.spatial_dim)
    model.reset_classifier(0)
    assert info.parameters == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", ["test_efficientnet", "test_vit"])
def test_compiled_losses_can_learn_from_features(name, timm_teacher):
    """A compiled graph keeps them for its backward pass, which torch refuses for tensors of its inference mode."""
    teacher, _ = timm_teacher(name, 64, classes=7, mode="combo", loss_type="MSE")
    features = FrozenTeacher(teacher)(pixels(), teacher.wanted)
    student = torch.zeros_like(features.summary, requires_grad=True)
    torch.compile(lambda own, other: ((own - other) * other).sum(), backend="aot_eager")(
        student, features.summary
    ).backward()
    torch.testing.assert_close(student.grad, features.summary)
    assert not features.summary.requires_grad


@pytest.mark.parametrize("name", ["test_resnet", "test_vit"])
def test_same_numbers_as_timm_behind_its_normalisation(name, timm_teacher):
    teacher, model = timm_teacher(name, classes=7, mode="logits", loss_type="KL", **NORM)
    assert describe(teacher).logits_dim == 7
    features = FrozenTeacher(teacher)(pixels(), teacher.wanted | BOTH)
    shift, scale = (torch.tensor(NORM[k]).view(1, 3, 1, 1) for k in ("norm_mean", "norm_std"))
    images = (pixels() / 255 - shift) / scale
    with torch.no_grad():
        torch.testing.assert_close(features.named["logits"], model(images).bfloat16(), rtol=2e-2, atol=1e-3)
        raw = model.forward_features(images)
        torch.testing.assert_close(
            features.summary, model.forward_head(raw, pre_logits=True).bfloat16(), rtol=2e-2, atol=1e-3
        )


@pytest.mark.parametrize("wanted", [{"summary"}, {"spatial"}, {"logits"}, {"summary", "spatial", "logits"}], ids=sorted)
@pytest.mark.parametrize("kind", ["timm", "ours"])
def test_only_what_is_wanted_in_bf16(wanted, kind, timm_teacher, checkpoint, resolve):
    if kind == "timm":
        teacher, _ = timm_teacher("test_vit", classes=5, mode="logits", loss_type="KL")
    else:
        teacher = resolve(
            pretrained_teacher_model_path=str(checkpoint[0]), mode="logits", loss_type="KL", input_size=64
        )
    features = FrozenTeacher(teacher)(pixels(), frozenset(wanted))
    given = {name for name in ("summary", "spatial") if getattr(features, name) is not None} | set(features.named)
    assert given == wanted
    for tensor in (features.summary, features.spatial, *features.named.values()):
        assert tensor is None or (tensor.dtype is torch.bfloat16 and not tensor.requires_grad)


def test_it_is_frozen_and_keeps_no_state(timm_teacher):
    teacher, _ = timm_teacher("test_resnet", mode="summary", loss_type="CS")
    model = FrozenTeacher(teacher)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    first, second = (model(pixels(), teacher.wanted).summary for _ in range(2))
    assert torch.equal(first, second) and not any(p.requires_grad for p in model.parameters())
    assert all(torch.equal(model.state_dict()[k], v) for k, v in before.items())


class TestOurCheckpoint:
    def test_by_its_path_alone(self, checkpoint, resolve):
        folder, student = checkpoint
        teacher = resolve(
            pretrained_teacher_model_path=str(folder),
            mode="combo",
            loss_type="MSE",
            input_size=48,
            norm_mean=list(ARCHITECTURE.mean),
            norm_std=list(ARCHITECTURE.std),
        )
        assert teacher.backbone.type is None
        info = describe(teacher)
        features = FrozenTeacher(teacher)(pixels(48), teacher.wanted)
        with torch.no_grad():
            own = student(pixels(48))
        assert own.summary.shape[1] == info.summary_dim == 16  # one of its two tokens was taught a summary
        assert (info.spatial_dim, info.grid, info.stride) == (16, (6, 6), 8)
        torch.testing.assert_close(features.summary.float(), own.summary, rtol=2e-2, atol=2e-2)
        torch.testing.assert_close(features.spatial.float(), own.spatial, rtol=2e-2, atol=2e-2)

    def test_its_classifier(self, checkpoint, resolve):
        teacher = resolve(
            pretrained_teacher_model_path=str(checkpoint[0]), mode="logits", loss_type="KL", input_size=32
        )
        info = describe(teacher)
        model = FrozenTeacher(teacher)
        assert info.logits_dim == 5 == model(pixels(32), teacher.wanted).named["logits"].shape[1]
        assert info.parameters == sum(p.numel() for p in model.parameters())

    def test_a_torn_one(self, checkpoint, resolve):
        folder, _ = checkpoint
        data = (folder / "student.safetensors").read_bytes()
        (folder / "student.safetensors").write_bytes(data[:-9])
        teacher = resolve(pretrained_teacher_model_path=str(folder), mode="summary")
        for use in (FrozenTeacher, describe, check_weights):
            with pytest.raises(WeightsError, match=r"distill.teacher\[0\].pretrained_teacher_model_path"):
                use(teacher)


class TestRefused:
    def test_no_classifier(self, tmp_path, resolve):
        radio = {"backbone": {"type": "c_radio_v3_vit_base_patch16_reg4_dinov2"}}
        plain = Student(StudentArchitecture("test_resnet"))
        save_student(plain, plain.state_dict(), tmp_path)
        for fields in ({"model": radio}, {"pretrained_teacher_model_path": str(tmp_path)}):
            with pytest.raises(SpecError, match="no classifier") as caught:
                describe(resolve(mode="logits", loss_type="KL", **fields))
            assert caught.value.problems[0].where == "distill.teacher[0].mode"

    def test_no_weights_no_type(self, resolve):
        with pytest.raises(SpecError, match=r"teacher\[0\].model.backbone.type"):
            describe(resolve())
        with pytest.raises(WeightsError, match="trained weights"):
            FrozenTeacher(resolve(model={"backbone": {"type": "test_vit"}}))

    def test_a_normalisation_that_is_none(self, timm_teacher):
        teacher, _ = timm_teacher("test_vit", mode="summary", norm_mean=[0.5, 0.5], norm_std=[0.5, 0.5])
        with pytest.raises(SpecError) as caught:
            describe(teacher)
        assert [p.where for p in caught.value.problems] == [f"distill.teacher[0].norm_{k}" for k in ("mean", "std")]

    def test_another_patch(self, timm_teacher):
        teacher, _ = timm_teacher("test_vit", mode="spatial", loss_type="MSE", patch_size=14)
        with pytest.raises(SpecError, match="patch is 16, not 14"):
            describe(teacher)

    def test_weights_of_another_architecture_and_a_nan(self, timm_teacher, tmp_path):
        teacher, model = timm_teacher("test_vit", mode="spatial", loss_type="MSE")
        state = {k: v.clone() for k, v in model.state_dict().items()}
        state["blocks.0.norm1.weight"][0] = float("nan")
        save_file(state, teacher.weights)
        for use in (FrozenTeacher, check_weights):
            with pytest.raises(WeightsError, match="blocks.0.norm1.weight"):
                use(teacher)
        save_file({"conv1.weight": torch.ones(1)}, teacher.weights)
        with pytest.raises(WeightsError, match="left over: conv1.weight"):
            check_weights(teacher)


def test_a_left_over_classifier_is_no_fault(timm_teacher, resolve):
    full, _ = timm_teacher("test_convnext", classes=7)
    headless = resolve(
        model={"backbone": {"type": "test_convnext", "kwargs": {"num_classes": 7}}},
        input_size=64,
        mode="summary",
        pretrained_teacher_model_path=full.weights,
    )
    assert FrozenTeacher(headless)(pixels(), headless.wanted).summary is not None
    assert describe(headless).logits_dim == 0


def test_precision(timm_teacher, resolve):
    cpu = torch.device("cpu")
    auto, *named = (resolve(precision).service.precision for precision in ("auto", "fp32", "bf16", "fp16"))
    assert [compute_dtype(p, cpu) for p in named] == [torch.float32, torch.bfloat16, torch.float16]
    assert compute_dtype(auto, cpu) is (torch.bfloat16 if has_native_bf16(cpu) else torch.float32)
    teacher, _ = timm_teacher("test_vit", mode="summary", loss_type="CS", precision="bf16")
    assert {p.dtype for p in FrozenTeacher(teacher).parameters()} == {torch.bfloat16}
