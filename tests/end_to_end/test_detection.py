"""A detector through `radioplat train` and `evaluate`: order, resume, validation, averages, and bad input by name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml

import radioplat
from benchmarks.composites import CLASSES, write_set
from benchmarks.ledger_rows import effective, read_consumed
from radioplat.cli import main as cli
from radioplat.data.detection.split import read_split
from radioplat.design.detector import detector_architecture, take_decoder
from radioplat.design.models import design_models
from radioplat.errors import RadioplatError, SpecError, WeightsError
from radioplat.models.detectors.base import Detector
from radioplat.models.detectors.checkpoint import load_detector
from radioplat.spec.loading.load import load_spec
from radioplat.tasks.evaluate.evaluate import evaluate
from radioplat.tasks.plan.plan import plan
from radioplat.tracking.results import TaskFolder

pytest.importorskip("transformers")
pytest.importorskip("pycocotools")

OPTIONS = dict(
    d_model=16, encoder_hidden_dim=16, encoder_ffn_dim=16, decoder_ffn_dim=16, decoder_layers=2, num_queries=8,
    encoder_attention_heads=2, decoder_attention_heads=2, num_denoising=4, hidden_expansion=0.5,
)  # fmt: skip


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sets")
    return {name: write_set(folder / name, 8, name == "val", side=64) for name in ("train", "val")}


@pytest.fixture
def spec(sets, tmp_path):
    """A mapping; four steps of two micro-batches of two."""
    splits = {f"{name}_dataset": dict(images_dir=str(i), coco=str(c)) for name, (i, c) in sets.items()}
    return {
        "results_dir": str(tmp_path / "results"),
        "model": {
            "task": "detection",
            "backbone": {"type": "resnet10t"},
            "detector": {"kind": "rtdetr", "options": OPTIONS},
        },
        "dataset": {"img_size": 64, "batch_size": 2, "workers": 1, **splits},
        "train": {
            "global_batch_size": 4,
            "max_steps": 4,
            "num_epochs": 2,
            "enable_ema": True,
            "optim": {"policy": "multistep"},
        },
        "cluster": {"mode": "local"},
    }


def broken_off(run, results: Path) -> None:
    """Copy a run of two epochs into ``results`` as if it had died after the first."""
    copy = results / run.folder.name
    shutil.copytree(run.folder, copy, symlinks=True)
    shutil.rmtree(copy / "model_epoch_002")
    TaskFolder(results, copy.name).point_latest("model_epoch_001")


def test_a_detector_is_trained_resumed_and_evaluated(spec, tmp_path):
    whole = radioplat.train(spec)
    assert whole.global_step == 4
    kpi = [r["kpi"] for r in map(json.loads, open(whole.folder / "status.json")) if "mAP" in r.get("kpi", {})]
    assert len(kpi) == 2 and {"mAP", "mAP50", "voc/mAP", "mAP/cat", "voc/AP/horse"} <= set(kpi[0])
    detector = load_detector(whole.checkpoint)
    assert detector.architecture.class_names == CLASSES and not detector.training
    halted = {**spec, "results_dir": str(tmp_path / "halted")}
    broken_off(whole, tmp_path / "halted")
    again = radioplat.train(halted)
    assert again.resumed_from == 2
    # Batches, weights and averages go on as if nothing had been.
    for ema in (False, True):
        a, b = (load_detector(r.checkpoint, ema=ema).state_dict() for r in (whole, again))
        apart = {name: (a[name].float() - b[name].float()).abs().max().item() for name in a}
        assert max(apart.values()) < 1e-5, apart
    ids = [effective(read_consumed(r.folder / "ledger"))["id"].to_pylist() for r in (whole, again)]
    assert ids[0] == ids[1] and len(ids[0]) == 16
    found = evaluate(spec)
    assert found.result.images == 8 and found.report.exists()
    assert found.result.kpi()["mAP"] == pytest.approx(kpi[-1]["mAP"])


@pytest.fixture(scope="module")
def teacher(sets, tmp_path_factory):
    """Of two steps."""
    images, file = sets["train"]
    return radioplat.train(
        {
            "results_dir": str(tmp_path_factory.mktemp("teacher")),
            "model": {"task": "detection", "backbone": {"type": "resnet10t"}, "detector": {"options": OPTIONS}},
            "dataset": {
                "img_size": 64,
                "batch_size": 2,
                "workers": 1,
                "train_dataset": {"images_dir": str(images), "coco": str(file)},
            },
            "train": {"max_steps": 2},
            "cluster": {"mode": "local"},
        }
    ).checkpoint


@pytest.mark.proof
def test_a_detector_is_distilled_and_resumed(spec, teacher, tmp_path):
    names = (("srcs.1", "L2"), ("srcs.0", "IOU"), ("memory.2", "phi_s"), ("queries", "L2"))
    bindings = [dict(teacher_module_name=n, student_module_name=n, criterion=c, weight=1.0) for n, c in names]
    spec["distill"] = {"teacher": {"pretrained_teacher_model_path": str(teacher)}, "bindings": bindings}
    spec["model"]["backbone"]["kwargs"] = {"channels": [16, 24, 32, 48]}  # other widths: projections, which train too
    spec["model"]["detector"]["kind"] = "rtdetr_v2"
    spec["distill"]["decoder_from_teacher"] = True
    whole = radioplat.distill(spec)
    steps = [r["kpi"] for r in map(json.loads, open(whole.folder / "status.json")) if "loss" in r.get("kpi", {})]
    assert len(steps) == 4 and all(f"loss/teacher/binding_{i}" in steps[0] for i in range(4))
    halted = {**spec, "results_dir": str(tmp_path / "halted")}
    broken_off(whole, tmp_path / "halted")
    again = radioplat.distill(halted)
    assert again.resumed_from == 2
    a, b = (load_detector(r.checkpoint, ema=False).state_dict() for r in (whole, again))
    apart = {name: (a[name].float() - b[name].float()).abs().max().item() for name in a}
    assert max(apart.values()) < 1e-5, apart
    with pytest.raises(WeightsError, match="the teacher's decoder differs"):
        radioplat.distill(halted, ["model.detector.kind=rtdetr_v2", "model.detector.options.d_model=32"])


def test_plan_reads_annotations_and_bindings(spec, teacher):
    binding = dict(teacher_module_name="srcs.1", student_module_name="srcs.9", criterion="L2")
    spec["distill"] = {"teacher": {"pretrained_teacher_model_path": str(teacher)}, "bindings": [binding]}
    found = plan(load_spec(spec))
    assert ["srcs.9" in str(problem) for problem in found.problems] == [True]
    assert "8 images" in found.facts["objects"] and "8 images" in found.facts["held-out objects"]


def test_plan_says_of_a_teacher_what_the_run_says(spec, teacher):
    """TAO's specs describe the teacher once more: another description than its file's is refused by both."""
    binding = dict(teacher_module_name="srcs.1", student_module_name="srcs.1", criterion="L2")
    described = {"pretrained_teacher_model_path": str(teacher), "model": {"backbone": {"type": "resnet34"}}}
    spec["distill"] = {"teacher": described, "bindings": [binding]}
    with pytest.raises(SpecError) as caught:
        radioplat.distill(spec)
    assert plan(load_spec(spec)).problems == caught.value.problems
    assert [problem.where for problem in caught.value.problems] == ["distill.teacher[0].model.backbone.type"]


def test_plan_of_the_labels_alone_counts_the_whole_detector(spec):
    found = plan(load_spec(spec))
    assert not found.problems and found.facts["task"].startswith("train: ")
    detector = Detector(detector_architecture(*built_from(spec)))
    assert [(m.role, m.parameters) for m in found.models] == [
        ("detector", sum(parameter.numel() for parameter in detector.parameters()))
    ]


def built_from(spec):
    whole = load_spec(spec)
    split = read_split(whole.dataset.train_dataset, [], "dataset.train_dataset")
    return whole, design_models(whole, "train").architecture, split.classes


def test_the_decoder_is_the_teachers(teacher, spec):
    detector, theirs = load_detector(teacher), load_detector(teacher).state_dict()
    for parameter in detector.parameters():
        parameter.data.zero_()
    take_decoder(detector, teacher)
    mine = detector.state_dict()
    assert all(torch.equal(mine[n], t) for n, t in theirs.items() if n.startswith("detr.model.decoder."))
    assert not next(detector.student.parameters()).any()


@pytest.mark.parametrize(
    "change, says",
    [
        (["dataset.num_classes=2"], "dataset.num_classes"),
        (["dataset.img_size=72"], "dataset.img_size: 72 is not a multiple of the detector's stride 32"),
        (["train.precision=bf16"], "train.precision"),
        (["model.detector.kind=yolo"], "no detector is called 'yolo'"),
        (["model.detector.options.num_queries=90"], "90 queries are more than the 84"),
        (["dataset.train_dataset.coco=null"], "dataset.train_dataset.coco: boxes are needed"),
        (["dataset.val_dataset.coco=nowhere.json"], "nowhere.json cannot be read"),
        (["model.task=features", "dataset.num_classes=4"], "no detector is trained"),
    ],
)
def test_what_cannot_be_is_named(spec, change, says):
    with pytest.raises(RadioplatError, match="(?s)" + says.replace("[", r"\[")):
        radioplat.train(spec, change)


def spoil(path, annotations):
    """A COCO file of the set with these changes to annotations (by place), one image gone, and one that is unknown."""
    content = json.loads(path.read_text())
    content["images"][0]["file_name"] = "gone.png"
    content["annotations"].append({"id": 99, "image_id": 12345, "category_id": 1, "bbox": [1, 1, 5, 5]})
    for entry, change in zip(content["annotations"], annotations, strict=False):
        entry |= {"image_id": 1, **change}
    return content


@pytest.mark.proof
def test_bad_annotations_are_counted_and_the_rest_is_learned_and_judged(spec, sets, teacher, tmp_path, capfd):
    changes = (
        {"bbox": [500, 500, 9, 9]},
        {"bbox": [-30, 1, 40, 9]},
        {"category_id": 77},
        {"bbox": [1, 1, -3, 9]},
        {"bbox": "no"},
    )
    for split, (_, file) in sets.items():
        bad = tmp_path / f"{split}.json"
        bad.write_text(json.dumps(spoil(file, changes)))
        spec["dataset"][f"{split}_dataset"]["coco"] = str(bad)
    binding = dict(teacher_module_name="srcs.1", student_module_name="srcs.1", criterion="IOU")
    spec["distill"] = {"teacher": {"pretrained_teacher_model_path": str(teacher)}, "bindings": [binding]}
    spec["train"] |= {"max_steps": 1, "enable_ema": False}
    written = tmp_path / "spec.yaml"
    written.write_text(yaml.safe_dump(spec))
    said = (
        "1 bad_box",
        "1 missing_file",
        "1 outside (first: 00001.png)",
        "1 unknown_class",
        "1 unknown_image",
        "1 zero_area",
    )
    assert cli.main(["distill", "-e", str(written)]) == 0
    status = (tmp_path / "results" / "distill" / "status.json").read_text()
    assert all(part in status for part in said), status
    made = tmp_path / "results" / "distill" / "model_latest"
    assert cli.main(["evaluate", "-e", str(written), f"evaluate.checkpoint={made}"]) == 0
    out = capfd.readouterr().out
    assert all(part.split(" (")[0] in out for part in said), out


@pytest.mark.parametrize("task", ["train", pytest.param("distill", marks=pytest.mark.proof)])
def test_images_without_any_object_are_trained_on(spec, sets, teacher, tmp_path, task):
    nothing = tmp_path / "nothing.json"
    nothing.write_text(json.dumps(json.loads(sets["train"][1].read_text()) | {"annotations": []}))
    names = (("srcs.1", "IOU"), ("pred_boxes", "L1"), ("pred_logits", "KL"))
    bindings = [dict(teacher_module_name=n, student_module_name=n, criterion=c) for n, c in names]
    if task == "distill":
        spec["distill"] = {"teacher": {"pretrained_teacher_model_path": str(teacher)}, "bindings": bindings}
    done = getattr(radioplat, task)(spec, [f"dataset.train_dataset.coco={nothing}", "train.max_steps=1"])
    assert done.global_step == 1
    status = (done.folder / "status.json").read_text()
    assert "8 images, 0 boxes of 4 classes; faults: 8 empty_image" in status
    assert all(t.isfinite().all() for t in load_detector(done.checkpoint, ema=False).state_dict().values())


def test_a_teachers_file_that_is_not_there_is_named(spec, tmp_path):
    binding = dict(teacher_module_name="srcs.1", student_module_name="srcs.1", criterion="L2")
    spec["distill"] = {"teacher": {"pretrained_teacher_model_path": str(tmp_path / "gone")}, "bindings": [binding]}
    with pytest.raises(RadioplatError, match="pretrained_teacher_model_path: no such file: .*gone"):
        radioplat.distill(spec)


def test_an_empty_evaluation_is_refused(spec):
    with pytest.raises(SpecError, match="held-out"):
        evaluate(spec, ("dataset.val_dataset.images_dir=null",))
