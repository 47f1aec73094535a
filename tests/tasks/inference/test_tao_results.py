"""Names of results that TAO's users expect."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import radioplat
from radioplat.data.loading.image_files import images_in
from radioplat.errors import RadioplatError
from radioplat.evaluation.inference.infer import Prediction
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.tasks.inference.tao_results import shared_stems, write_kitti


def box(name: str, side: float) -> Prediction:
    corners = np.array([[0, 0, side, side]], np.float32)
    return Prediction(name=name, width=9, height=9, boxes=corners, labels=np.array([0]), scores=np.array([0.9]))


def test_images_that_differ_in_their_ending_have_labels_of_their_own(tmp_path):
    rows = [box("a.jpg", 1), box("a.png", 2), box("b.jpg", 3)]
    write_kitti(tmp_path, rows, 0.5, shared_stems(row.name for row in rows))
    written = {path.name: path.read_text().split()[6] for path in tmp_path.iterdir()}
    assert written == {"a.jpg.txt": "1.000", "a.png.txt": "2.000", "b.txt": "3.000"}


def test_a_name_that_is_not_utf_8_is_shown_and_read(tmp_path):
    name = os.fsencode(tmp_path) + b"/\xff.png"
    Image.new("RGB", (64, 64)).save(tmp_path / "x.png")
    os.rename(tmp_path / "x.png", name)
    (image,) = images_in(str(tmp_path), "images")
    assert image.name.encode() and "\ufffd" in image.name and Path(image.path).is_file()


def test_a_model_in_memory_stays_in_its_mode_and_keeps_its_tokens():
    kwargs = {"embed_dim": 16, "depth": 2, "num_heads": 2}
    student = Student(StudentArchitecture("radio1d_vit_tiny_patch16", kwargs, img_size=64)).train()
    student.backbone.num_tokens = 1
    images = np.random.default_rng(0).integers(0, 256, (2, 64, 64, 3), np.uint8)
    one = radioplat.embed(student, images).summary
    assert student.training and student.backbone.num_tokens == 1
    student.backbone.num_tokens = None
    assert np.abs(one - radioplat.embed(student, images).summary).max() > 0.01


def test_no_batch_is_no_batch_size():
    student = Student(StudentArchitecture("test_vit", img_size=64))
    with pytest.raises(RadioplatError, match="at least 1, not 0"):
        radioplat.embed(student, [np.zeros((64, 64, 3), np.uint8)], batch_size=0)
