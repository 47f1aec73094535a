"""DINO from TAO's own fields through `radioplat train` and `evaluate`."""

from __future__ import annotations

import pytest
import yaml

import radioplat
from benchmarks.composites import CLASSES, write_set
from radioplat.evaluate.run import evaluate
from radioplat.models.detector_file import load_detector

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


def test_tao_s_dino_is_trained_and_evaluated(spec):
    trained = radioplat.train(spec)
    assert trained.global_step == 2
    detector = load_detector(trained.checkpoint)
    assert detector.architecture.kind == "dino" and detector.architecture.class_names == CLASSES
    assert detector.architecture.options["num_denoising"] == 4 and detector.detr.config.class_cost == 2
    assert evaluate(spec).result.images == 6
