"""The student as a whole, and its way to disk and back."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from radioplat.errors import SpecError, WeightsError
from radioplat.models.heads import HeadArchitecture
from radioplat.models.pretrained.initial_weights import start_student
from radioplat.models.student.checkpoint import (
    HEADS_FILE,
    STUDENT_FILE,
    is_checkpoint,
    load_student,
    read_architecture,
    read_tensors,
    save_student,
)
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.spec.loading.load import load_spec

RADIO = StudentArchitecture(
    "c_radio_v3_vit_base_patch16_reg4_dinov2",
    dict(embed_dim=16, depth=1, num_heads=2, patch_size=8),
    num_class_tokens=2,
    img_size=32,
    mean=(0.1, 0.2, 0.3),
    std=(0.4, 0.5, 0.6),
    num_classes=3,
    heads=(HeadArchitecture("a", 4, 5, hidden=8, num_inner=1), HeadArchitecture("b", spatial_dim=6, token_slot=1)),
)
CNN = StudentArchitecture(
    "test_efficientnet", img_size=64, num_classes=4, heads=(HeadArchitecture("a", 4, logits_dim=3),)
)
ARCHITECTURES = pytest.mark.parametrize("architecture", [RADIO, CNN], ids=["radio", "cnn"])


@ARCHITECTURES
def test_architecture_as_json(architecture):
    assert StudentArchitecture.from_json(architecture.to_json()) == architecture


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda raw: raw["heads"][0].update(spatial_num_inner=10**9), r"heads\[0\].spatial_num_inner is 1000000000"),
        (lambda raw: raw["heads"][1].update(num_inner=-1), r"heads\[1\].num_inner is -1"),
        (lambda raw: raw["kwargs"].update(depth=10**9), "kwargs.depth is 1000000000"),
        (lambda raw: raw.update(num_class_tokens=10**9), "num_class_tokens is 1000000000"),
        (lambda raw: raw["heads"][0].update(hidden=2**40), r"heads\[0\].hidden is 1099511627776"),
        (lambda raw: raw["kwargs"].update(mlp_ratio=float("inf")), "kwargs.mlp_ratio is inf"),
        (lambda raw: raw["kwargs"].update(mlp_ratio=1e9), "kwargs.mlp_ratio is 1000000000.0"),
        (lambda raw: raw["kwargs"].update(mlp_ratio=float("nan")), "kwargs.mlp_ratio is nan"),
    ],
)
def test_a_crafted_architecture_is_refused_at_once(change, field, tmp_path):
    save_student(student := Student(RADIO), student.state_dict(), tmp_path)
    raw = json.loads(RADIO.to_json())
    change(raw)
    metadata = {"radioplat.student": json.dumps(raw)}
    save_file(load_file(tmp_path / STUDENT_FILE), tmp_path / STUDENT_FILE, metadata)
    with pytest.raises(WeightsError, match=f"student.safetensors describes an impossible model: {field}, not between"):
        load_student(tmp_path)


@pytest.mark.parametrize("field", ["summary", "spatial"])
def test_an_architecture_that_cannot_be_built(tmp_path, field):
    save_student(student := Student(RADIO), student.state_dict(), tmp_path)
    raw = json.loads(RADIO.to_json())
    name = next(name for name in raw["heads"][0] if name.startswith(field) and isinstance(raw["heads"][0][name], int))
    raw["heads"][0][name] = -1
    metadata = {"radioplat.student": json.dumps(raw)}
    save_file(load_file(tmp_path / STUDENT_FILE), tmp_path / STUDENT_FILE, metadata)
    with pytest.raises(WeightsError, match="cannot be built: RuntimeError"):
        load_student(tmp_path)


def test_an_architecture_that_is_nested_too_deeply(tmp_path):
    save_student(student := Student(RADIO), student.state_dict(), tmp_path)
    metadata = {"radioplat.student": "[" * 100_000 + "]" * 100_000}
    save_file(load_file(tmp_path / STUDENT_FILE), tmp_path / STUDENT_FILE, metadata)
    with pytest.raises(WeightsError, match="nested too deeply"):
        load_student(tmp_path)


@ARCHITECTURES
def test_bytes_and_unit_floats_are_one_input(architecture):
    student = Student(architecture).eval()
    pixels = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    a, b = student(pixels), student(pixels.float() / 255)
    assert torch.equal(a.summary, b.summary) and torch.equal(a.spatial, b.spatial)


def test_normalisation_is_inside():
    plain = Student(dataclasses.replace(RADIO, mean=(0.0,) * 3, std=(1.0,) * 3)).eval()
    student = Student(RADIO).eval()
    student.load_state_dict(plain.state_dict())
    images = torch.rand(1, 3, 32, 32)
    shift, scale = (torch.tensor(v).view(1, 3, 1, 1) for v in (RADIO.mean, RADIO.std))
    torch.testing.assert_close(student(images).summary, plain((images - shift) / scale).summary)


def test_logits_of_either_kind():
    for architecture, classes in ((RADIO, 3), (CNN, 4)):
        student = Student(architecture).eval()
        found = student(torch.rand(2, 3, 64, 64), frozenset({"summary", "logits"}))
        assert found.named["logits"].shape == (2, classes) and found.spatial is None


def test_heads_and_registers():
    student = Student(RADIO)
    assert student.head_names == ["a", "b"] and student.stride == 8
    assert student.backbone.patch_generator.num_registers == 4  # reg4, as the name says
    features = student(torch.rand(2, 3, 32, 32))
    found = student.head("a", features)
    assert found.summary.shape == (2, 4) and found.spatial.shape == (2, 4, 4, 5)
    wider = dataclasses.replace(RADIO, num_registers=1)
    assert Student(wider).backbone.patch_generator.num_registers == 1
    multiple = dataclasses.replace(RADIO, register_multiple=5)
    assert Student(multiple).backbone.patch_generator.num_registers == 3


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"type": "no_such"}, "model.backbone.type"),
        ({"kwargs": {"num_classes": 3}}, "model.backbone.kwargs.num_classes"),
        ({"heads": (HeadArchitecture("train", 4),)}, "distill.teacher"),
    ],
)
def test_refused(change, where):
    with pytest.raises(SpecError) as caught:
        Student(dataclasses.replace(CNN, **change))
    assert caught.value.problems[0].where == where


class TestCheckpoint:
    @ARCHITECTURES
    def test_round_trip_is_bit_equal(self, architecture, tmp_path):
        torch.manual_seed(1)
        student = Student(architecture)
        student.train()(torch.rand(2, 3, 64, 64))  # moves what BatchNorm keeps
        save_student(student, student.state_dict(), tmp_path)
        again = load_student(tmp_path)
        assert is_checkpoint(tmp_path) and not again.training and again.architecture == architecture
        for name, tensor in student.state_dict().items():
            assert torch.equal(again.state_dict()[name], tensor), name

    @pytest.fixture
    def saved(self, tmp_path):
        student = Student(CNN)
        save_student(student, student.state_dict(), tmp_path)
        return tmp_path

    def test_heads_lie_apart(self, saved):
        assert all(name.startswith("heads.") for name in load_file(saved / HEADS_FILE))
        assert not any(name.startswith("heads.") for name in load_file(saved / STUDENT_FILE))
        assert set(read_tensors(saved)) == set(Student(CNN).state_dict())

    def test_half_a_file(self, saved):
        for name in (STUDENT_FILE, HEADS_FILE):
            whole = (saved / name).read_bytes()
            (saved / name).write_bytes(whole[: len(whole) // 2])
            with pytest.raises(WeightsError, match=name):
                load_student(saved, "evaluate.checkpoint")
            (saved / name).write_bytes(whole)
        (saved / HEADS_FILE).unlink()
        with pytest.raises(WeightsError, match=HEADS_FILE):
            load_student(saved)

    def test_no_folder_no_architecture_and_another_architecture(self, saved, tmp_path):
        with pytest.raises(WeightsError, match="model_latest"):
            load_student(tmp_path / "nothing")
        tensors = load_file(saved / STUDENT_FILE)
        for metadata, words in (
            ({}, "does not say"),
            ({"radioplat.student": '{"type": 3}'}, "cannot read"),
            ({"radioplat.student": RADIO.to_json()}, "does not fit"),
        ):
            save_file(tensors, saved / STUDENT_FILE, metadata)
            with pytest.raises(WeightsError, match=words):
                load_student(saved)
        assert not is_checkpoint(tmp_path / "nothing")
        with pytest.raises(WeightsError):
            read_architecture(tmp_path / "nothing")

    def test_a_nan_is_named(self, saved):
        tensors = load_file(saved / STUDENT_FILE)
        name = next(k for k, v in tensors.items() if v.is_floating_point())
        tensors[name].view(-1)[0] = float("nan")
        save_file(tensors, saved / STUDENT_FILE, {"radioplat.student": CNN.to_json()})
        with pytest.raises(WeightsError, match=name.replace(".", r"\.")):
            load_student(saved, "x")


class TestStart:
    def test_same_seed_same_student_and_no_trace_in_the_generator(self):
        before = torch.random.get_rng_state()
        first, second = (start_student(load_spec(), RADIO) for _ in range(2))
        assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
        assert torch.equal(torch.random.get_rng_state(), before)

    @ARCHITECTURES
    @pytest.mark.parametrize("field", ["model.backbone.pretrained_backbone_path", "train.pretrained_model_path"])
    def test_from_a_checkpoint_with_other_labels_and_teachers(self, architecture, field, tmp_path):
        old = Student(dataclasses.replace(architecture, num_classes=7, heads=(HeadArchitecture("z", 4),)))
        save_student(old, old.state_dict(), tmp_path)
        new = start_student(load_spec(None, [f"{field}={tmp_path}"]), architecture)
        kept = {k: v for k, v in old.backbone.state_dict().items() if "classifier" not in k}
        assert kept and all(torch.equal(new.backbone.state_dict()[k], v) for k, v in kept.items())
        assert (
            new(torch.rand(2, 3, 64, 64), frozenset({"summary", "logits"})).named["logits"].shape[1]
            == architecture.num_classes
        )

    def test_another_backbone_is_refused(self, tmp_path):
        old = Student(CNN)
        save_student(old, old.state_dict(), tmp_path)
        with pytest.raises(WeightsError, match="does not fit"):
            start_student(load_spec(None, [f"model.backbone.pretrained_backbone_path={tmp_path}"]), RADIO)


def test_only_the_tokens_that_a_summary_loss_taught_make_the_summary():
    heads = (HeadArchitecture("a", 5, 6, token_slot=0), HeadArchitecture("b", None, 6, token_slot=1))
    architecture = StudentArchitecture(
        type="radio_vit_tiny_patch16",
        kwargs={"embed_dim": 24, "depth": 1, "num_heads": 2},
        num_class_tokens=2,
        img_size=32,
        heads=heads,
    )
    student = Student(architecture).eval()
    features = student(torch.rand(2, 3, 32, 32))
    assert torch.equal(features.summary, features.named["tokens"][:, 0])
    bare = Student(dataclasses.replace(architecture, heads=())).eval()
    assert bare(torch.rand(2, 3, 32, 32)).summary.shape == (2, 48)
