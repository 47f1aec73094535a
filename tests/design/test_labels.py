"""Labels that can be mixed with class scores, and those that cannot."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from PIL import Image

from radioplat.data.index.build import build_index
from radioplat.data.loading.run_data import RunData
from radioplat.design.labels import label_problems
from radioplat.errors import Problem
from radioplat.spec.loading.load import load_spec
from radioplat.spec.resolved.teacher import resolve_teachers
from radioplat.teachers.base.teacher import describe


@pytest.fixture
def found(tmp_path):
    """found(folders, classes, alpha) -> problems of images in these folders and a teacher of so many classes."""

    def look(folders: list[str], classes: int, alpha: float = 0.5) -> list[Problem]:
        images = tmp_path / "images"
        for name in folders:
            (images / name).mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 8)).save(images / name / "a.png")
        teacher = {"name": "t", "model": {"backbone": {"type": "test_resnet"}}, "loss_type": "KL"}
        spec = load_spec(
            {
                "dataset": {"train_dataset": {"images_dir": str(images)}},
                "distill": {"alpha": alpha, "teacher": [teacher, {**teacher, "name": "u", "loss_type": "CS"}]},
            }
        )
        split = spec.dataset.train_dataset
        index = build_index(split, "d", tmp_path / "index", max_pixels=spec.dataset.max_pixels)
        teachers = resolve_teachers(spec)
        infos = {t.name: dataclasses.replace(describe(t), logits_dim=classes) for t in teachers}
        return list(label_problems(spec, teachers, infos, RunData.create(index, split, spec.dataset.max_pixels)))

    return look


def test_classes_enough(found):
    assert found(["cat", "dog", "owl"], 3) == []


def test_a_label_beyond_the_classes(found):
    (problem,) = found(["cat", "dog", "owl"], 2)
    assert problem.where == "distill.alpha" and "up to 2" in problem.message and "t has 2" in problem.message


def test_without_alpha_labels_may_be_anything(found):
    assert found(["cat", "dog", "owl"], 2, 0.0) == []


def test_no_labels(found, tmp_path: Path):
    (problem,) = found(["."], 3)
    assert problem.where == "distill.alpha" and "no image has a label" in problem.message
