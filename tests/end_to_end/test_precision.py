"""A run writes the number formats that its start chose into its own spec, and later starts keep them."""

from __future__ import annotations

import pytest
import torch

import radioplat
from radioplat.spec.loading.load import load_spec
from radioplat.spec.schema.train import Precision

_ABLE = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 0)
CHOSEN = Precision.bf16 if _ABLE else Precision.fp32


@pytest.fixture
def supervised(corpora, tmp_path):
    """A spec of task `train`, without teachers and without a precision."""
    return {
        "results_dir": str(tmp_path),
        "model": {"backbone": {"type": "test_resnet"}},
        "dataset": {
            "img_size": 32, "batch_size": 4, "workers": 1, "num_classes": 3,
            "train_dataset": {"images_dir": str(corpora / "folders")},
        },
        "train": {"global_batch_size": 4, "num_epochs": 1, "max_steps": 1, "optim": {"lr": 1e-3}},
        "cluster": {"mode": "local"},
    }  # fmt: skip


@pytest.mark.proof
def test_a_distillation_keeps_what_it_began_with(make_spec, distil, tmp_path):
    spec = make_spec(tmp_path)
    del spec["train"]["precision"]
    begun = distil(spec, "train.max_steps=1", "train.precision=bf16", "train.tf32=false")
    again = distil(spec, "train.max_steps=2")
    assert again.result.resumed_from == 1
    kept = load_spec(begun.folder / "experiment.yaml").train
    assert (kept.precision, kept.tf32) == (Precision.bf16, False)
    assert not any("train.precision:" in line or "train.tf32:" in line for line in again.lines)  # nothing changed
    named = distil(spec, "train.max_steps=3", "train.precision=fp32")
    assert any("train.precision: bf16 -> fp32" in line for line in named.lines)
    assert load_spec(named.folder / "experiment.yaml").train.precision is Precision.fp32


def test_a_training_without_teachers_writes_it_too(supervised):
    folder = radioplat.train(supervised, say=lambda line: None).folder
    written = load_spec(folder / "experiment.yaml").train
    assert (written.precision, written.tf32) == (CHOSEN, True)
    lines: list[str] = []
    radioplat.train(supervised, ["train.max_steps=2", "train.num_epochs=2"], say=lines.append)
    assert not any("train.precision:" in line or "train.tf32:" in line for line in lines)
