"""A classifier taught by labels and a teacher on two Ray workers: what one process computes, from images of which only
some have a label."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import ray

import radioplat
from radioplat.models.student.checkpoint import read_architecture
from radioplat.tracking.status import read_status
from radioplat.training.checkpoints.checkpoint import verified_state

pytestmark = [pytest.mark.timeout(300), pytest.mark.proof]
SIZE, STEPS, CLASSES = 64, 6, ("astronaut", "chelsea", "coffee")


@pytest.fixture(scope="module")
def images(corpora, crops, encode, write_shard, tmp_path_factory) -> Path:
    """``loose``: a shard without labels; held-out crops lie in ``val``, a folder a class."""
    root = tmp_path_factory.mktemp("images")
    write_shard(root / "loose" / "a.tar", [(f"{i}.png", encode(p, "PNG")) for i, (_, p) in enumerate(crops(24, 80, 7))])
    for i, (name, pixels) in enumerate(crops(40, 80, 8)):
        if name in CLASSES:
            path = root / "val" / name / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encode(pixels, "PNG"))
    return root


@pytest.fixture(scope="module")
def make(corpora, images, tmp_path_factory):
    """make(backbone, workers, **distill) -> a spec; on Ray where there are two workers."""

    def build(backbone: str, workers: int = 1, **distill) -> dict:
        sources = [{"root_dir": str(images / "loose"), "steps_per_epoch": STEPS}] if distill else []
        return {
            "results_dir": str(tmp_path_factory.mktemp("run")),
            "model": {"backbone": {"type": backbone}},
            "dataset": {
                "img_size": SIZE,
                "batch_size": 4,
                "workers": 1,
                "num_classes": 3,
                "train_dataset": {"images_dir": str(corpora / "folders"), "tar_data_sources": sources},
                "val_dataset": {"images_dir": str(images / "val")},
            },
            "train": {
                "precision": "fp32",
                "zero_stage": 2,
                "num_epochs": 1,
                "max_steps": STEPS,
                "global_batch_size": 12,
                "num_gpus": workers,
                "optim": {"lr": 3e-3, "policy": "cosine"},
            },
            "distill": distill,
            "cluster": {"mode": "ray" if workers > 1 else "local", "cpus_per_worker": 0.5, "cpus_per_decode": 0.5},
            "teachers": {"t": {"num_cpus": 0.5}} if distill else {},
        }

    return build


@pytest.fixture(scope="module")
def teacher(make):
    return radioplat.train(make("test_resnet"), say=lambda line: None)


@pytest.fixture(scope="module")
def cluster(ray_environment):
    before = dict(os.environ)
    os.environ.update(ray_environment)
    ray.init(
        address="local", num_cpus=4, num_gpus=0, include_dashboard=False, log_to_driver=False, logging_level="ERROR"
    )
    yield
    ray.shutdown()
    os.environ.clear()
    os.environ.update(before)


def steps(result) -> list[dict]:
    return [line["kpi"] for line in read_status(result.folder / "status.json") if "max_step" in line]


def top1(result) -> float:
    found = [line["kpi"] for line in read_status(result.folder / "status.json") if "validation" in line["message"]]
    return found[-1]["accuracy/top1"]


@pytest.mark.parametrize("mode", ["logits", "summary"])
def test_two_workers_learn_what_one_learns(cluster, make, teacher, mode):
    one = {"name": "t", "pretrained_teacher_model_path": str(teacher.checkpoint), "mode": mode}
    one |= {"loss_type": "KL" if mode == "logits" else "CS"}
    asked = {"alpha": 0.3, "loss_lambda": 1.0, "kl_form": "hinton", "mlp_hidden_size": 16, "teacher": [one]}
    alone, both = (
        radioplat.distill(make("test_efficientnet", count, **asked), say=lambda line: None) for count in (1, 2)
    )
    assert verified_state(both.checkpoint).world_size == 2 and verified_state(alone.checkpoint).world_size == 1
    mine, its = steps(both), steps(alone)
    assert len(mine) == len(its) == STEPS
    for step, (kpi, other) in enumerate(zip(mine, its, strict=True)):
        for name in ("loss", "loss/labels", f"loss/t/{mode}"):
            assert kpi[name] == pytest.approx(other[name], rel=1e-3), (step, name)
    assert read_architecture(both.checkpoint).class_names == CLASSES
    assert top1(both) == pytest.approx(top1(alone), abs=1.01 / 30)
