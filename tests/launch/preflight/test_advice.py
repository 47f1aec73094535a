"""TAO's advice: each sentence where its condition holds, and not where it does not; real images and structures."""

from __future__ import annotations

import numpy as np
import pytest
import timm
import torch
from PIL import Image

from radioplat.launch.preflight import advice
from radioplat.launch.preflight.preflight import Level, Preflight
from radioplat.launch.preflight.steps import STEPS, take_steps
from radioplat.models.student.checkpoint import save_student
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.models.weights.read import read_checkpoint
from radioplat.spec.loading.load import load_spec

LABELS, CNN, FEW = "fine-tune the teacher", "may struggle to learn from a ViT", "small students need more images"
VIT, RESNET = "test_vit", "test_resnet"


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A folder of two classes of four images."""
    folder = tmp_path_factory.mktemp("images")
    generator = np.random.default_rng(0)
    for name in ("a", "b"):
        (folder / name).mkdir()
        for i in range(4):
            pixels = generator.integers(0, 256, (40, 40, 3), np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i}.png")
    return folder


@pytest.fixture
def planned(images, tmp_path):
    """planned(student, teacher, classes, ...) -> the facts of the models' and the images' steps, and of the advice."""

    def plan(student, teacher=VIT, classes=0, alpha=0.0, **entry):
        entry = {"name": "t", "mode": "spatial", "loss_type": "MSE", **entry}
        entry |= {"model": {"backbone": {"type": teacher}}} if teacher else {}
        dataset = {"img_size": 64, "batch_size": 2, "num_classes": classes}
        dataset["train_dataset"] = {"images_dir": str(images)}
        tree = {
            "results_dir": str(tmp_path),
            "model": {"backbone": {"type": student}},
            "dataset": dataset,
            "distill": {"alpha": alpha, "teacher": [entry]},
        }
        preflight = take_steps(Preflight(load_spec(tree), "distill", tmp_path / "distill", Level.data))
        assert preflight.models is not None and preflight.data is not None, preflight.problems
        advice.unused_parts(preflight)
        advice.advice(preflight)
        return preflight.facts

    return plan


def test_plan_gives_it():
    steps = dict((step, level) for level, step in STEPS)
    assert steps[advice.advice] is steps[advice.unused_parts] is Level.plan


@pytest.mark.parametrize(
    ("classes", "alpha", "mode", "told"),
    [(2, 0.5, "spatial", True), (2, 0.5, "logits", False), (0, 0.0, "spatial", False)],
    ids=["labels", "class scores of the task", "no task"],
)
def test_a_teacher_for_a_task(planned, classes, alpha, mode, told):
    more = {"loss_type": "KL"} if mode == "logits" else {}
    facts = planned("test_vit2", VIT, classes, alpha, mode=mode, **more)
    assert (LABELS in facts.get("TAO's advice", "")) is told


@pytest.mark.parametrize(("task", "told"), [("dino", False), ("mae", True)])
def test_a_backbone_that_tao_trained_for_a_task(planned, task, told, tmp_path):
    prefix = {"dino": "model.model.backbone.0.body.", "mae": "model."}[task]
    state = {prefix + k: v for k, v in timm.create_model(VIT, num_classes=0).state_dict().items()}
    state["model.model.label_enc.weight" if task == "dino" else "model.decoder_embed.weight"] = torch.ones(2)
    torch.save({"state_dict": state, "tao_model": task}, tmp_path / "w.pth")
    facts = planned("test_vit2", VIT, 2, 0.5, pretrained_teacher_model_path=str(tmp_path / "w.pth"))
    assert (LABELS in facts.get("TAO's advice", "")) is told
    place = f"t is the backbone under {prefix!r} of TAO's {task.upper()}, and this is not used: 1 tensor: model."
    assert place in facts["teachers' files"]


def test_a_teachers_file_is_read_once_for_all_advice(planned, tmp_path, monkeypatch):
    """And again when the file was replaced."""
    read: list[str] = []

    def counted(path, *arguments, **options):
        read.append(path.name)
        return read_checkpoint(path, *arguments, **options)

    monkeypatch.setattr(advice, "read_checkpoint", counted)
    plain = timm.create_model(VIT, num_classes=0).state_dict()
    for task, prefix in (("dino", "model.model.backbone.0.body."), ("mae", "model.")):
        state = {prefix + k: v for k, v in plain.items()} | {"model.decoder_embed.weight": torch.ones(2)}
        torch.save({"state_dict": state, "tao_model": task}, tmp_path / "w.pth")
        facts = planned("test_vit2", VIT, 2, 0.5, pretrained_teacher_model_path=str(tmp_path / "w.pth"))
        assert f"of TAO's {task.upper()}" in facts["teachers' files"] and read == ["w.pth"]
        read.clear()


@pytest.mark.parametrize("classes", [2, 0])
def test_a_students_checkpoint(planned, classes, tmp_path):
    """One that classifies was fine-tuned; one that was only distilled was not."""
    names = ("a", "b")[:classes]
    student = Student(StudentArchitecture(VIT, num_classes=classes, class_names=names))
    save_student(student, student.state_dict(), tmp_path)
    facts = planned("test_vit2", None, 2, 0.5, pretrained_teacher_model_path=str(tmp_path))
    assert (LABELS in facts.get("TAO's advice", "")) is (classes == 0)


@pytest.mark.parametrize(
    ("student", "teacher", "told"),
    [
        (RESNET, VIT, True),
        ("test_convnext", VIT, True),
        (RESNET, "test_efficientnet", False),
        ("test_vit2", VIT, False),
        ("test_vit2", RESNET, False),
    ],
)
def test_a_vit_that_teaches_a_cnn(planned, student, teacher, told):
    told_now = planned(student, teacher).get("TAO's advice", "")
    assert (CNN in told_now) is told and (f"({student})" in told_now) is told


def test_few_images_for_a_small_student(planned, monkeypatch):
    told = planned("test_vit2", "vit_tiny_patch16_224")["TAO's advice"]
    assert FEW in told and "has 8: more epochs" in told
    assert FEW not in planned("vit_tiny_patch16_224", "test_vit2").get("TAO's advice", "")  # larger than its teacher
    monkeypatch.setattr(advice, "FEW", 8)
    assert FEW not in planned("test_vit2", "vit_tiny_patch16_224").get("TAO's advice", "")
    monkeypatch.setattr(advice, "FEW", 9)
    monkeypatch.setattr(advice, "SMALL", 1000)
    assert FEW not in planned("test_vit2", "vit_tiny_patch16_224").get("TAO's advice", "")


def test_what_code_a_spec_runs(tmp_path):
    """A module and a name, and nothing that only looks like them: URLs, paths of Windows, times."""
    spec = load_spec({}, [
        "train.hooks=[own.hooks:Count, plain:Other]", "model.backbone.type=mine.net:Net",
        "dataset.train_dataset.tar_data_sources=[{root_dir: s3://bucket/a}, {root_dir: 'C:/data'}]",
        "results_dir='at 12:30'",
    ])  # fmt: skip
    found = Preflight(spec, "distill", tmp_path)
    found.take(advice.own_code)
    assert found.facts[advice.OWN_CODE] == (
        "mine.net:Net (model.backbone.type), own.hooks:Count (train.hooks[0]), plain:Other (train.hooks[1])"
    )
    plain = Preflight(load_spec({}), "distill", tmp_path)
    plain.take(advice.own_code)
    assert advice.OWN_CODE not in plain.facts
