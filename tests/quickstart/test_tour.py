"""The end of the quickstart: the comparison, whose page begins with what the terminal says."""

from __future__ import annotations

import html
import re
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from radioplat.models.student.checkpoint import save_student
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.quickstart.tour import FITTED, INT8, START, STUDENT, TEACHER, compare, headline
from radioplat.spec.loading.load import load_spec
from radioplat.tasks.prune.rounds import PRUNED

SIZE = 32


@pytest.fixture
def folder(tmp_path):
    """Images of two classes, and one small student that takes the place of all five models."""
    pixels = np.random.default_rng(0).integers(0, 256, (2, 2, 6, SIZE, SIZE, 3), dtype=np.uint8)
    for split, of_split in zip(("train", "val"), pixels, strict=True):
        for name, images in zip("ab", of_split, strict=True):
            (tmp_path / split / name).mkdir(parents=True)
            for i, image in enumerate(images):
                Image.fromarray(image).save(tmp_path / split / name / f"{i}.png")
    torch.manual_seed(0)
    student = Student(
        StudentArchitecture("radio_vit_tiny_patch16", {"embed_dim": 48, "depth": 1, "num_heads": 3}, img_size=SIZE)
    )
    (tmp_path / "student").mkdir()
    save_student(student, student.state_dict(), tmp_path / "student")
    shutil.copytree(tmp_path / "student", tmp_path / "results" / "untaught" / PRUNED)
    return tmp_path


def test_the_page_begins_with_the_headline_of_the_terminal(folder):
    spec = load_spec({
        "results_dir": str(folder / "results"),
        "dataset": {
            "img_size": SIZE, "batch_size": 4, "workers": 1,
            "train_dataset": {"images_dir": str(folder / "train")}, "val_dataset": {"images_dir": str(folder / "val")},
        },
        "train": {"pretrained_model_path": str(folder / "student")},
    })  # fmt: skip
    engines = {name: folder / "student" for name in (TEACHER, STUDENT, INT8)}
    macs = {TEACHER: 2e6, **dict.fromkeys((START, FITTED, STUDENT, INT8), 1e6)}
    compared = compare(spec, engines, macs)
    expected = headline(compared.models, macs)
    assert expected.startswith("With 50% of its teacher's multiply-accumulates the student keeps 100% of the teacher's")
    page = compared.report.read_text(encoding="utf-8")
    (shown,) = re.findall(r'<p class="headline">(.*?)</p>', page)
    assert html.unescape(shown) == expected
    assert page.index(shown) < page.index("<h2>")
    # First the maps, then the neighbours.
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", page)
    assert "photographs are whole" in captions[0] and captions[1].startswith("Held-out images") and len(captions) == 2
    sample = compared.findings.sample
    assert list(sample.maps) == [TEACHER, START, STUDENT] and len(sample.images) == 4
