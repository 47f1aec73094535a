"""Detectors side by side: torch, its ONNX file and its engine agree on mAP; one that is damaged does not."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from crowded_cells import crowded_cells
from drawn_detector import SIZE, drawn_detector

from benchmarks.composites import CLASSES, write_set
from radioplat.data.detection.coco import read_coco
from radioplat.errors import RadioplatError
from radioplat.evaluation.detection.measure_detector import look_at
from radioplat.evaluation.models import engine as engine_model
from radioplat.evaluation.pictures.boxes_panel import boxes_panel
from radioplat.exporting.engine_latency import latency_here
from radioplat.exporting.engines.build import build_engine
from radioplat.exporting.onnx.export import export_onnx
from radioplat.models.detectors.checkpoint import save_detector
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.models.vision_model import save_model
from radioplat.spec.schema.engine import EngineBackend, TensorRTConfig
from radioplat.tasks.evaluate.evaluate import evaluate
from radioplat.tasks.evaluate.show import show

pytestmark = pytest.mark.proof

pytest.importorskip("transformers")
pytest.importorskip("pycocotools")


def tell_truth(annotations, detector, pixels, keep: int = 3) -> None:
    """Make the surest boxes of ``detector`` the objects: so it is right about most, and nothing must be trained."""
    content = json.loads(annotations.read_text())
    content["annotations"] = []
    for image, found in zip(content["images"], detector.detect(pixels, keep), strict=True):
        for xyxy, label in zip(found.xyxy.clamp(0, SIZE).tolist(), found.labels.tolist(), strict=True):
            left, top, right, bottom = xyxy
            box = [left, top, right - left, bottom - top]
            content["annotations"].append(
                {
                    "id": len(content["annotations"]) + 1,
                    "image_id": image["id"],
                    "category_id": content["categories"][label]["id"],
                    "bbox": box,
                    "area": box[2] * box[3],
                    "iscrowd": 0,
                }
            )
    annotations.write_text(json.dumps(content))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Images, a detector that is right about them, one that is damaged, the first as ONNX and as an engine."""
    folder = tmp_path_factory.mktemp("detectors")
    images, annotations = write_set(folder / "val", 8, True, SIZE)
    split = read_coco(str(annotations), str(images))
    pixels = torch.from_numpy(np.stack([look_at(p, SIZE) for p in split.pictures]))
    detector = drawn_detector()
    tell_truth(annotations, detector, pixels)
    save_detector(detector, folder / "model")
    export_onnx(detector, folder / "model.onnx", height=SIZE, width=SIZE)
    config = TensorRTConfig(data_type="fp32", min_batch_size=1, opt_batch_size=4, max_batch_size=8)
    build_engine(folder / "model.onnx", folder / "model.engine", config, backend=EngineBackend.onnxruntime)
    with torch.no_grad():
        for head in detector.detr.decoder.class_embed:
            head.weight.mul_(0.5).add_(0.3 * torch.randn(head.weight.shape, generator=torch.Generator().manual_seed(0)))
    save_detector(detector, folder / "damaged")
    return folder


def spec_of(made, tmp_path, **models):
    return {
        "results_dir": str(tmp_path / "results"),
        "dataset": {
            "img_size": SIZE,
            "batch_size": 4,
            "workers": 1,
            "val_dataset": {"images_dir": str(made / "val/images"), "coco": str(made / "val/annotations.json")},
        },
        "evaluate": {"models": {name: str(made / file) for name, file in models.items()}, "pictures": 3},
    }


def test_what_is_measured_first_here_is_warned_of_at_once(made, tmp_path, monkeypatch):
    shutil.copytree(made, tmp_path / "made")
    record = json.loads((made / "model.engine.json").read_text()) | {"latency": None}
    (tmp_path / "made/model.engine.json").write_text(json.dumps(record))

    def slower(*given):
        latency, new = latency_here(*given)
        return latency | {"warnings": ["another type is faster"]}, new

    monkeypatch.setattr(engine_model, "latency_here", slower)
    found = evaluate(spec_of(tmp_path / "made", tmp_path, torch="model", engine="model.engine"))
    assert [row.warning for row in found.models] == ["", "another type is faster"]


def test_all_forms_are_judged_on_the_same_images(made, tmp_path, capsys):
    spec = spec_of(made, tmp_path, torch="model", onnx="model.onnx", engine="model.engine", damaged="damaged")
    found = evaluate(spec)
    torch_, onnx_, engine, damaged = found.models
    assert torch_.result.coco.map > 0.2, "the objects are its own boxes"
    for row in (onnx_, engine):
        assert row.result.coco.map == pytest.approx(torch_.result.coco.map, abs=1e-3)
        assert row.result.voc == pytest.approx(torch_.result.voc, abs=1e-3)
        # A score at the bar rounds to either side of it: on a machine with AMX one of the 25 boxes does.
        pairs = ((row.right, torch_.right), (row.spurious, torch_.spurious), (row.missed, torch_.missed))
        assert all(abs(a - b) <= 1 for a, b in pairs), pairs
    assert damaged.difference["mAP"] < -1 and damaged.right < torch_.right
    objects = sum(len(boxes) for boxes in torch_.result.truth)
    assert torch_.right + torch_.missed == objects
    assert engine.state == "executed on cpu, evaluated"
    record = json.loads((made / "model.engine.json").read_text())
    assert record["evaluated"] and record["evaluation"]["mAP"] == pytest.approx(engine.result.coco.map)
    written = json.loads((tmp_path / "results/evaluate/results.json").read_text())
    assert [row["name"] for row in written["models"]] == ["torch", "onnx", "engine", "damaged"]
    assert written["models"][0]["coco"]["map"] == torch_.result.coco.map and written["classes"] == list(CLASSES)
    page = found.report.read_text()
    assert "Detectors side by side" in page and "data:image/png" in page and "horse" in page
    show(found)
    printed = capsys.readouterr().out
    assert "spurious" in printed and "Difference from torch in percentage points" in printed
    assert crowded_cells(page) == crowded_cells(printed) == []
    # The pictures show the boxes.
    first, other = torch_.result, damaged.result
    same, differing = (
        boxes_panel(first.pictures[:2], {"a": result.detections[:2]}, CLASSES, found.threshold, 10**6)
        for result in (first, other)
    )
    assert same != differing
    assert same == boxes_panel(first.pictures[:2], {"a": first.detections[:2]}, CLASSES, found.threshold, 10**6)


def test_what_cannot_be_judged_is_named(made, tmp_path):
    student = Student(StudentArchitecture("resnet10t", img_size=SIZE))
    save_model(student, made / "student")
    (made / "torn.safetensors").write_bytes(b"no model")
    for models, says in (
        ({"a": "model", "b": "student"}, "student is a student, and others of evaluate.models are detectors"),
        ({"a": "model", "b": "torn.safetensors"}, r"models\[1\].path: .* is not a whole safetensors file"),
        ({"a": "model", "b": "nowhere"}, "there is no"),
    ):
        with pytest.raises(RadioplatError, match=says):
            evaluate(spec_of(made, tmp_path, **models))
    spec = spec_of(made, tmp_path, a="model", b="model.onnx")
    with pytest.raises(RadioplatError, match="takes 64 pixels a side"):
        evaluate(spec, ("dataset.val_img_size=96",))
    with pytest.raises(RadioplatError, match="evaluate.linear_probe: this is for students"):
        evaluate(spec, ("evaluate.linear_probe.enable=true",))
    with pytest.raises(RadioplatError, match="evaluated in fp32"):
        models = [{"name": "a", "path": str(made / "model"), "precision": "fp16"}]
        evaluate(spec | {"evaluate": {"models": models}})
    kept = json.loads((made / "val/annotations.json").read_text())
    kept["categories"].append({"id": 99, "name": "unicorn"})
    (made / "others.json").write_text(json.dumps(kept))
    with pytest.raises(RadioplatError, match="classes"):
        evaluate(spec, (f"dataset.val_dataset.coco={made / 'others.json'}",))
