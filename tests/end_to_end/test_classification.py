"""Classification: a teacher fine-tuned on labelled folders teaches a student on them and on images without labels."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image

import radioplat
from radioplat.errors import DataError, SpecError
from radioplat.models.pretrained.initial_weights import start_student
from radioplat.models.student.checkpoint import read_architecture
from radioplat.spec.checks.tasks.training_run import check
from radioplat.spec.loading.load import load_spec
from radioplat.tasks.evaluate.evaluate import evaluate
from radioplat.tasks.plan.plan import plan
from radioplat.tracking.status import read_status

DIGITS = (0, 1, 4)
NAMES = tuple(f"digit_{d}" for d in DIGITS)
QUIET = {"random_flip": {"enable": False}, "random_crop": {"enable": False}}


@pytest.fixture(scope="module")
def images(write_shard, tmp_path_factory):
    """scikit-learn's digits: ``few`` (8 a folder), ``val`` (20 a folder), ``loose`` (shards without labels)."""
    from sklearn.datasets import load_digits

    root, digits, loose = tmp_path_factory.mktemp("digits"), load_digits(), []
    for digit, name in zip(DIGITS, NAMES, strict=True):
        for i, pixels in enumerate(digits.images[digits.target == digit][:100]):
            image = Image.fromarray(np.round(pixels * (255 / 16)).astype(np.uint8)).resize((32, 32))
            if i < 28:
                path = root / ("few" if i < 8 else "val") / name / f"{i:03d}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                image.save(path)
            else:
                buffer = io.BytesIO()
                image.save(buffer, "PNG")
                loose.append((f"{name}_{i:03d}.png", buffer.getvalue()))
    write_shard(root / "loose" / "a.tar", loose)
    return root


@pytest.fixture(scope="module")
def make(images, tmp_path_factory):
    """make(backbone, **sections) -> a spec in a folder of its own, on the few labelled images."""

    def build(backbone: str, distill: dict | None = None, classes: int = 3, folder: str = "few") -> dict:
        return {
            "results_dir": str(tmp_path_factory.mktemp("run")),
            "model": {"backbone": {"type": backbone}},
            "dataset": {
                "img_size": 32,
                "batch_size": 8,
                "workers": 1,
                "num_classes": classes,
                "augmentation": QUIET,
                "train_dataset": {"images_dir": str(images / folder)},
                "val_dataset": {"images_dir": str(images / "val")},
            },
            "train": {
                "precision": "fp32",
                "num_epochs": 20,
                "global_batch_size": 8,
                "checkpoint_interval": 20,
                "validation_interval": 20,
                "optim": {"lr": 3e-3, "policy": "cosine"},
            },
            "distill": distill or {},
            "evaluate": {"baseline": False, "pictures": 0},
            "cluster": {"mode": "local"},
        }

    return build


@pytest.fixture(scope="module")
def teacher(make):
    return radioplat.train(make("test_resnet"), say=lambda line: None)


@pytest.fixture(scope="module")
def mixed(make, teacher, images):
    """mixed(**distill) -> a spec with one image of the labelled ones for two without a label."""

    def build(**distill) -> dict:
        one = {"name": "t", "pretrained_teacher_model_path": str(teacher.checkpoint)}
        one |= distill.pop("teacher", {})
        common = {"alpha": 0.3, "loss_lambda": 1.0, "mlp_hidden_size": 16, "teacher": [one]}
        spec = make("test_efficientnet", common | distill)
        loose = {"root_dir": str(images / "loose"), "scale_factor": 2.0, "steps_per_epoch": 6}
        spec["dataset"]["train_dataset"]["tar_data_sources"] = [loose]
        spec["train"]["num_epochs"] = 1
        return spec

    return build


def validated(folder) -> dict:
    return next(line["kpi"] for line in read_status(folder / "status.json") if "validation" in line["message"])


def test_a_fine_tuned_teacher_knows_its_classes_and_is_judged_by_them(teacher):
    assert read_architecture(teacher.checkpoint).class_names == NAMES
    kpi = validated(teacher.folder)
    assert set(kpi) == {"accuracy/top1", "accuracy/top5"}, "nobody asked for kNN"
    assert kpi["accuracy/top1"] > 0.8 and kpi["accuracy/top5"] == 1.0


@pytest.mark.parametrize(
    ("teacher_says", "terms"),
    [
        ({"mode": "logits", "loss_type": "KL"}, {"logits"}),
        ({"mode": "summary", "loss_type": "CS"}, {"summary"}),
        ({"loss_type": "MSE"}, {"spatial"}),  # auto
    ],
)
def test_labels_and_a_teacher_in_one_run(mixed, teacher_says, terms):
    spec = mixed(teacher=teacher_says, kl_form="hinton")
    student = radioplat.distill(spec, say=lambda line: None)
    seen = [line["kpi"] for line in read_status(student.folder / "status.json") if "max_step" in line]
    assert len(seen) == 6 and {n for n in seen[0] if n.startswith("loss/")} == {
        "loss/labels",
        *(f"loss/t/{term}" for term in terms),
    }
    architecture = read_architecture(student.checkpoint)
    assert architecture.num_classes == 3 and architecture.class_names == NAMES
    assert 0 < validated(student.folder)["accuracy/top1"] < 1
    # The classifier, and the heads that lead into the teacher's space, have learnt.
    start = start_student(load_spec(spec), architecture).state_dict()
    tensors = safetensors.torch.load_file(student.checkpoint / "student.safetensors")
    heads = safetensors.torch.load_file(student.checkpoint / "heads.safetensors")
    layers = [n for n in heads if n.endswith("weight") and n.startswith("heads.t.")]
    assert bool(layers) == (terms != {"logits"})
    for name in [*layers, "backbone.model.classifier.weight"]:
        assert not torch.equal(start[name], {**tensors, **heads}[name]), name


def test_it_is_evaluated_by_its_own_classifier(mixed, images):
    spec = mixed(teacher={"mode": "logits"})
    student = radioplat.distill(spec, say=lambda line: None)
    found = evaluate(load_spec(spec))
    assert found.accuracy == pytest.approx(validated(student.folder)["accuracy/top1"])
    results = json.loads((found.folder / "results.json").read_text())
    assert results["accuracy_top5"] == 1.0, "three classes"
    for name in NAMES:
        shutil.copytree(images / "val" / name, images / "other" / name.replace("4", "5"))
    with pytest.raises(SpecError) as caught:
        evaluate(load_spec(spec, (f"dataset.train_dataset.images_dir={images / 'other'}",)))
    (problem,) = caught.value.problems
    assert problem.where == "dataset.train_dataset" and "'digit_4' there and 'digit_5' here" in problem.message


def test_held_out_images_that_are_not_there_are_told_before_the_first_step(make):
    spec = make("test_resnet")
    spec["dataset"]["val_dataset"]["images_dir"] += "_none"
    with pytest.raises(DataError) as caught:
        radioplat.train(spec, say=lambda line: None)
    assert caught.value.problems[0].where == "dataset.val_dataset.images_dir"


def test_a_classifier_that_nothing_teaches_is_told(mixed):
    spec = mixed(alpha=0.0, teacher={"mode": "summary", "loss_type": "CS"})
    found = plan(load_spec(spec))
    assert not found.problems and "a classifier by `train`" in found.tasks[0].detail
    assert any("the student gets no classifier" in warning for warning in found.warnings)


@pytest.mark.parametrize(
    ("name", "task"), [("classification", "train"), ("classification", "distill"), ("segmentation", "distill")]
)
def test_the_examples_have_no_contradictions(name, task):
    assert check(load_spec(Path(__file__).parents[2] / "specs" / f"{name}.yaml"), task) == []


def test_plan_refuses_classes_that_are_not_the_same(mixed, make, teacher, images):
    spec = mixed(teacher={"mode": "logits"})
    found = plan(load_spec(spec))
    assert not found.problems and "classifies 3 classes by itself" in found.tasks[0].detail
    path = "distill.teacher[0].pretrained_teacher_model_path"
    spec["dataset"]["num_classes"] = 5
    (problem,) = plan(load_spec(spec)).problems
    assert problem.where == path and "t has 3 classes, and dataset.num_classes is 5" in problem.message
    spec["dataset"]["num_classes"] = 2
    fields = {p.where: p.message for p in plan(load_spec(spec)).problems}
    assert set(fields) == {path, "dataset.num_classes"} and "digit_0, digit_1, digit_4" in fields["dataset.num_classes"]
    (problem,) = plan(load_spec(make("test_resnet", classes=2)), task="train").problems
    assert problem.where == "dataset.num_classes" and "the images have 3" in problem.message
    # Their number is right, and their order is not.
    renamed = images / "renamed"
    for old, new in zip(NAMES, ("digit_0", "digit_2", "digit_4"), strict=True):
        (renamed / new).mkdir(parents=True)
        (renamed / new / "a.png").write_bytes((images / "few" / old / "000.png").read_bytes())
    spec = make("test_efficientnet", spec["distill"], folder="renamed")
    spec["dataset"]["val_dataset"] = {}
    (problem,) = plan(load_spec(spec)).problems
    assert problem.where == path and "class 1 is 'digit_1' there and 'digit_2' here" in problem.message
    spec["distill"]["teacher"][0] |= {"mode": "summary", "loss_type": "CS"}
    assert not plan(load_spec(spec)).problems, "features have no classes"


def relabelled(images, name: str, *pairs: tuple[str, str]) -> str:
    """A folder of held-out images under other names: (class, what it is called)."""
    for old, new in pairs:
        shutil.copytree(images / "val" / old, images / name / new)
    return str(images / name)


@pytest.mark.proof
def test_held_out_images_of_classes_that_are_not_learnt_are_told(make, images):
    spec = make("test_resnet")
    spec["train"]["num_epochs"] = 1
    some = relabelled(images, "some", ("digit_0", "digit_0"), ("digit_1", "letter_a"))
    none = relabelled(images, "none", ("digit_0", "letter_a"), ("digit_1", "letter_b"))
    spec["dataset"]["val_dataset"]["images_dir"] = some
    heard = []
    run = radioplat.train(spec, say=heard.append)
    note = "dataset.val_dataset: 20 images of classes that are not learnt will not be judged: 20 'letter_a'"
    assert note in heard and note in plan(load_spec(spec), task="train").warnings
    right = 20 * validated(run.folder)["accuracy/top1"]
    assert right == pytest.approx(round(right)), "of the other 20"
    assert note in evaluate(load_spec(spec, (f"evaluate.checkpoint={run.checkpoint}",))).findings.absent
    spec = make("test_resnet")
    spec["dataset"]["val_dataset"]["images_dir"] = none
    (problem,) = plan(load_spec(spec), task="train").problems
    assert problem.where == "dataset.val_dataset" and "there are 20 'letter_a', 20 'letter_b'" in problem.message
    with pytest.raises(SpecError, match="no held-out image is of a class"):
        radioplat.train(spec, say=lambda line: None)


def test_numbers_beside_names_are_refused(make, write_shard, images):
    spec = make("test_resnet")
    png = next((images / "few" / "digit_1").iterdir()).read_bytes()
    shard = [("a.png", png), ("a.json", b'{"label": 1, "label_name": "digit_1"}'), ("b.png", png), ("b.cls", b"")]
    write_shard(images / "both" / "a.tar", shard)
    write_shard(images / "numbers" / "a.tar", [("a.png", png), ("a.cls", b"1")])
    spec["dataset"]["train_dataset"]["tar_data_sources"] = [{"root_dir": str(images / "both")}]
    assert not plan(load_spec(spec), task="train").problems, "the name says what the number is"
    spec["dataset"]["train_dataset"]["tar_data_sources"] = [{"root_dir": str(images / "numbers")}]
    (problem,) = plan(load_spec(spec), task="train").problems
    assert problem.where == "dataset.train_dataset" and "it is unknown whether class 1 is 'digit_1'" in problem.message


@pytest.mark.proof
def test_without_labels_the_classes_are_those_of_the_teacher(mixed, images, teacher):
    """Class scores over images without labels alone; held-out images are judged by the teacher's names."""
    spec = mixed(alpha=0.0, teacher={"mode": "logits"})
    del spec["dataset"]["train_dataset"]["images_dir"]
    student = radioplat.distill(spec, say=lambda line: None)
    assert read_architecture(student.checkpoint).class_names == NAMES
    found = evaluate(load_spec(spec))
    assert 0 < found.accuracy == pytest.approx(validated(student.folder)["accuracy/top1"])


def test_a_backbone_out_of_a_model_for_another_task(mixed, teacher, tmp_path):
    """A detector's or a segmenter's file: its backbone under a prefix, decoder and heads beside it."""
    tensors = radioplat.load_student(teacher.checkpoint).backbone.model.state_dict()
    tensors = {k: v for k, v in tensors.items() if not k.startswith("fc.")}
    whole = {f"model.net.backbone.{k}": v for k, v in tensors.items()}
    whole |= {"model.net.decode_head.conv.weight": torch.ones(2, 2), "model.net.class_embed.bias": torch.ones(9)}
    torch.save({"state_dict": whole, "epoch": 3}, tmp_path / "downstream.pth")
    backbone = {"model": {"backbone": {"type": "test_resnet"}}, "mode": "spatial", "loss_type": "MSE"}
    spec = mixed(alpha=0.0, teacher=backbone)
    spec["dataset"]["num_classes"] = 0
    spec["train"]["max_steps"] = 2
    bare = radioplat.distill(spec, say=lambda line: None)
    spec["distill"]["teacher"][0]["pretrained_teacher_model_path"] = str(tmp_path / "downstream.pth")
    spec["results_dir"] += "_downstream"
    stripped = radioplat.distill(spec, say=lambda line: None)
    losses = [
        [line["kpi"]["loss/t/spatial"] for line in read_status(r.folder / "status.json") if "max_step" in line]
        for r in (bare, stripped)
    ]
    assert losses[0] == losses[1], "the same backbone says the same"
