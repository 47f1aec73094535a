"""A whole run in this process with everything that moves weights: stopped and resumed it is the quiet run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import radioplat
from radioplat.models.student.checkpoint import read_tensors
from radioplat.models.weights.model_format import read_average

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


@pytest.fixture
def images(tmp_path) -> Path:
    """Two classes of eight images."""
    draw = np.random.default_rng(0)
    for label in ("bright", "dark"):
        (tmp_path / "images" / label).mkdir(parents=True)
        for i in range(8):
            pixels = draw.integers(0, 128, (40, 40, 3), dtype=np.uint8) + (100 if label == "bright" else 0)
            Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / "images" / label / f"{i}.png")
    return tmp_path / "images"


def test_stopped_and_resumed_it_is_the_quiet_run(images, tmp_path):
    def spec(name: str) -> dict:
        return {
            "results_dir": str(tmp_path / name),
            "model": {"backbone": {"type": "test_resnet"}},
            "dataset": {
                "img_size": 32,
                "batch_size": 4,
                "workers": 1,
                "num_classes": 2,
                "train_dataset": {"images_dir": str(images)},
            },
            "train": {
                "num_epochs": 3,
                "global_batch_size": 8,
                "checkpoint_interval": 1,
                "enable_ema": True,
                "ema_decay": 0.6,
                "regularizer": {"type": "L2", "weight": 1e-4},
                "optim": {
                    "optim": "lamb",
                    "lr": 0.01,
                    "policy": "step",
                    "head_warmup_epochs": 0.5,
                    "projector_lr": 0.05,
                },
            },
            "cluster": {"mode": "local"},
        }

    quiet = radioplat.train(spec("quiet"), say=lambda line: None)
    radioplat.train(spec("beaten"), ["train.max_steps=3"], say=lambda line: None)
    beaten = radioplat.train(spec("beaten"), say=lambda line: None)
    assert beaten.resumed_from == 3 and beaten.global_step == quiet.global_step == 6
    for read in (read_tensors, read_average):
        expected, found = read(quiet.checkpoint), read(beaten.checkpoint)
        assert set(found) == set(expected) and len(found) > 10
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6)
    plain, average = read_tensors(quiet.checkpoint), read_average(quiet.checkpoint)
    assert any("running_var" in name for name in average)
    assert not torch.allclose(plain["backbone.model.conv1.0.weight"], average["backbone.model.conv1.0.weight"])
    student = radioplat.load_student(quiet.checkpoint)
    assert all(torch.equal(student.state_dict()[name], value) for name, value in average.items())
    lines = [json.loads(line) for line in (quiet.folder / "status.json").read_text().splitlines()]
    terms = [line["kpi"]["loss/regularizer"] for line in lines if "loss/regularizer" in line.get("kpi", {})]
    assert len(terms) == 6 and all(value > 0 for value in terms) and terms[0] != terms[-1]
