"""Several processes encode and search: every figure is that of one process; what goes wrong in one is said here."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import forked
import numpy as np
import pytest
import safetensors.torch
import skimage.data
import timm
import torch
from PIL import Image

from radioplat.design.models import design_models
from radioplat.errors import RadioplatError, SpecError, WeightsError
from radioplat.evaluation.measure.processes import Processes
from radioplat.evaluation.metrics.knn import knn_accuracy
from radioplat.models.pretrained.initial_weights import start_student
from radioplat.models.student.checkpoint import save_student
from radioplat.spec.loading.load import load_spec
from radioplat.tasks.evaluate.evaluate import evaluate

SCENES = {"astronaut": skimage.data.astronaut, "cat": skimage.data.chelsea, "coffee": skimage.data.coffee}
pytestmark = pytest.mark.timeout(300)


def crops(folder: Path, count: int, seed: int) -> str:
    rng = np.random.default_rng(seed)
    for name, scene in SCENES.items():
        picture = scene()
        (folder / name).mkdir(parents=True)
        for i in range(count):
            y, x = (int(rng.integers(0, limit - 80)) for limit in picture.shape[:2])
            Image.fromarray(picture[y : y + 80, x : x + 80]).save(folder / name / f"{i}.png")
    return str(folder)


@pytest.fixture(scope="module")
def spec(tmp_path_factory) -> dict:
    """A student and a ViT as teacher, 24 and 15 labelled images in batches of 7, some of which are not full."""
    forked.start_server()  # before the evaluation starts its own, which has imported less
    root = tmp_path_factory.mktemp("processes")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        vit = timm.create_model("test_vit", num_classes=0, img_size=64).state_dict()
    safetensors.torch.save_file(vit, root / "vit.safetensors")
    teacher = {
        "name": "vit",
        "model": {"backbone": {"type": "test_vit", "kwargs": {"img_size": 64}}},
        "pretrained_teacher_model_path": str(root / "vit.safetensors"),
        "mode": "combo",
        "loss_type": "BALANCED",
        "summary_loss_type": "cosine",
    }
    kwargs = {"embed_dim": 48, "depth": 2, "num_heads": 3}
    found = {
        "results_dir": str(root / "results"),
        "model": {"backbone": {"type": "radio_vit_tiny_patch16", "kwargs": kwargs}},
        "dataset": {
            "img_size": 64,
            "batch_size": 7,
            "workers": 1,
            "train_dataset": {"images_dir": crops(root / "train", 8, 0)},
            "val_dataset": {"images_dir": crops(root / "val", 5, 1)},
        },
        "train": {"global_batch_size": 7},
        "distill": {"mlp_hidden_size": 32, "teacher": [teacher]},
        "cluster": {"mode": "local"},
        "evaluate": {"resolutions": [32], "correspondence": {"enable": True, "images": 8}, "knn_k": 5},
    }
    loaded = load_spec(found)
    student = start_student(loaded, design_models(loaded, "distill").architecture)
    checkpoint = root / "model_epoch_001"
    checkpoint.mkdir()
    save_student(student, student.state_dict(), checkpoint)
    found["evaluate"]["checkpoint"] = str(checkpoint)
    return found


def figures(tree, path="") -> dict[str, object]:
    """Leaves of a JSON tree by their path."""
    if isinstance(tree, dict):
        return {k: v for key, value in tree.items() for k, v in figures(value, f"{path}/{key}").items()}
    if isinstance(tree, list):
        return {k: v for i, value in enumerate(tree) for k, v in figures(value, f"{path}[{i}]").items()}
    return {path: tree}


def test_two_processes_find_what_one_finds(spec):
    alone = evaluate(spec)
    one = figures(json.loads((alone.folder / "results.json").read_text()))
    seen = []
    both = evaluate(spec, ("evaluate.num_gpus=2",), lambda done, total: seen.append((done, total)))
    two = figures(json.loads((both.folder / "results.json").read_text()))
    assert two.keys() == one.keys() and {"student", "student at 32", "untrained student", "vit"} == set(alone.knn)
    for name, value in one.items():
        assert two[name] == (pytest.approx(value, rel=1e-4, abs=1e-5) if isinstance(value, float) else value), name
    assert seen[-1][0] == seen[-1][1] == 4 + 3


def test_the_bank_in_pieces_and_what_goes_wrong_in_a_process(spec, tmp_path):
    loaded, checkpoint = load_spec(spec), Path(spec["evaluate"]["checkpoint"])
    processes = Processes(loaded, checkpoint, 2)
    try:
        torch.manual_seed(0)
        bank, queries = torch.randn(31, 8).repeat(2, 1), torch.randn(9, 8)  # each row twice: ties
        labels, own = torch.arange(62) % 5, torch.arange(9) % 5
        plain = knn_accuracy(bank, labels, queries, own, k=7)
        assert knn_accuracy(bank, labels, queries, own, k=7, search=processes.search) == plain
        few = knn_accuracy(bank[:1], labels[:1], queries, own, k=7, search=processes.search)
        assert few == knn_accuracy(bank[:1], labels[:1], queries, own, k=7)  # one of the pieces is empty
        worker = next(iter(processes._workers[0]._processes.values()))
        os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises(RadioplatError, match="evaluate.num_gpus: a process of the evaluation ended"):
            knn_accuracy(bank, labels, queries, own, k=7, search=processes.search)
    finally:
        processes.close()
    broken = load_spec(spec)
    broken.distill.teacher[0].pretrained_teacher_model_path = str(tmp_path / "gone.safetensors")
    processes = Processes(broken, checkpoint, 1)
    try:
        with pytest.raises(WeightsError, match="no such file"):
            list(processes.encode(iter([_Batch()]), {}))
    finally:
        processes.close()


class _Batch:
    """A batch without views: enough for models that cannot be built."""

    views: dict = {}


def test_fewer_than_one_is_named(spec):
    with pytest.raises(SpecError, match="evaluate.num_gpus: must be at least 1, not 0"):
        load_spec(spec, ["evaluate.num_gpus=0"])
