"""DINO from TAO's own fields through `radioplat train` and `evaluate`."""

from __future__ import annotations

import json

import pytest
import yaml

import radioplat
from benchmarks.composites import CLASSES, write_set
from radioplat.errors import SpecError
from radioplat.models.detectors.checkpoint import load_detector
from radioplat.tasks.evaluate.evaluate import evaluate

pytest.importorskip("transformers")
pytest.importorskip("pycocotools")

STUDENT = """
train:
  num_epochs: 1
  max_steps: 2
  optim: {lr: 0.001, lr_backbone: 1.0e-4, lr_steps: [1]}
dataset:
  batch_size: 2
  workers: 1
model:
  backbone: resnet10t
  num_feature_levels: 3
  dec_layers: 2
  enc_layers: 1
  num_queries: 8
  hidden_dim: 16
  nheads: 2
  dim_feedforward: 16
  dn_number: 4
cluster: {mode: local}
"""


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sets")
    return {name: write_set(folder / name, 6, name == "val", side=64) for name in ("train", "val")}


@pytest.fixture
def spec(sets, tmp_path):
    """TAO's spec, and the one field that it has no counterpart of."""
    tree = yaml.safe_load(STUDENT) | {"results_dir": str(tmp_path / "results")}
    for name, (images, boxes) in sets.items():
        tree["dataset"][f"{name}_data_sources"] = [{"image_dir": str(images), "json_file": str(boxes)}]
    tree["dataset"]["img_size"] = 64
    return tree


# The block that TAO prints, of a smaller teacher.
DISTILL = """
teacher:
  backbone: resnet10t
  train_backbone: False
  num_feature_levels: 3
  dec_layers: 2
  enc_layers: 1
  num_queries: 8
  dropout_ratio: 0.0
  dim_feedforward: 16
bindings:
- teacher_module_name: 'model.backbone.0.body'
  student_module_name: 'model.backbone.0.body'
  criterion: L2
  weight: 1.0
- {teacher_module_name: pred_logits, student_module_name: pred_logits, criterion: KL, weight: 1.0}
"""


def test_tao_s_dino_is_trained_evaluated_and_teaches(spec):
    trained = radioplat.train(spec)
    assert trained.global_step == 2
    detector = load_detector(trained.checkpoint)
    assert detector.architecture.kind == "dino" and detector.architecture.class_names == CLASSES
    assert detector.architecture.options["num_denoising"] == 4 and detector.detr.config.class_cost == 2
    assert evaluate(spec).result.images == 6
    taught = {**spec, "distill": yaml.safe_load(DISTILL)}
    taught["model"] = spec["model"] | {"num_queries": 6, "dec_layers": 1}
    taught["distill"]["pretrained_teacher_model_path"] = str(trained.checkpoint)
    wrong = "distill.teacher.num_queries=900"
    with pytest.raises(SpecError, match=r"distill.teacher\[0\].model.detector.options.num_queries.*8, not 900"):
        radioplat.distill(taught, [wrong])
    distilled = radioplat.distill(taught)
    assert distilled.global_step == 2
    kpi = [line["kpi"] for line in map(json.loads, open(distilled.folder / "status.json")) if line.get("kpi")]
    names = {name.rpartition("/")[2] for found in kpi for name in found}
    assert {"ce", "bbox", "giou", "binding_0", "binding_1", "binding_2", "binding_3"} <= names
    assert load_detector(distilled.checkpoint).architecture.options["num_queries"] == 6
