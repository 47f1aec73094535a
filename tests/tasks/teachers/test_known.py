"""`radioplat teachers list`: what it prints is what timm builds, and what the page shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import timm
import torch

from radioplat.cli.main import main
from radioplat.errors import RadioplatError
from radioplat.spec.loading.load import load_spec
from radioplat.spec.resolved.teacher import resolve_teachers
from radioplat.tasks.teachers.known import USUAL, describe, known_teachers
from radioplat.teachers.base.teacher import describe as info_of

PAGE = Path(__file__).parents[3] / "docs" / "define" / "teachers.md"


@pytest.mark.parametrize("name", ["tf_efficientnet_lite0.in1k", "vit_small_patch14_reg4_dinov2.lvd142m"])
def test_a_teacher_is_described_as_timm_builds_it(name):
    known, built = describe(name), timm.create_model(name, pretrained=False, num_classes=0)
    assert known.parameters == sum(parameter.numel() for parameter in built.parameters())
    assert known.size == built.pretrained_cfg["input_size"][-1]
    assert (known.mean, known.std) == (built.pretrained_cfg["mean"], built.pretrained_cfg["std"])


TABLE = {
    "SigLIP2-g": ["ViT-gopt-16-SigLIP2-384"],
    "DINOv3-7B": ["dinov3_vit7b16"],
    "PE": ["PE-Core-G14-448", "PE-Lang-G14-448", "PE-Spatial-G14-448"],
    "EUPE": ["eupe_vitb16", "eupe_convnext_base"],
}


@pytest.mark.parametrize("row", TABLE)
def test_the_sizes_of_c_radios_teachers_are_those_that_are_built(row):
    (line,) = re.findall(rf"^\| {row} \| .*", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    _, _, types, parameters, pixels, *_ = (cell.strip() for cell in line.split("|"))
    assert [name for name in TABLE[row] if f"`{name}`" not in types] == []
    entries = [{"name": f"t{i}", "model": {"backbone": {"type": name}}} for i, name in enumerate(TABLE[row])]
    infos = [info_of(teacher) for teacher in resolve_teachers(load_spec({"distill": {"teacher": entries}}))]
    assert [int(each) for each in parameters.split(", ")] == [round(info.parameters / 1e6) for info in infos]
    assert {int(pixels)} == {info.native.size for info in infos}


def test_the_size_of_sam_3_is_that_of_transformers():
    transformers = pytest.importorskip("transformers")
    (line,) = re.findall(r"^\| SAM 3 \| .*", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    config = transformers.Sam3ViTConfig()
    with torch.device("meta"):
        built = transformers.AutoModel.from_config(config)
    expected = [round(sum(parameter.numel() for parameter in built.parameters()) / 1e6), config.image_size]
    assert [int(cell) for cell in line.split("|")[3:5]] == expected


def test_the_page_shows_what_is_printed(capsys):
    assert main(["teachers", "list"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in USUAL)
    page = PAGE.read_text(encoding="utf-8")
    assert [line.rstrip() for line in printed.splitlines() if line.rstrip() not in page] == []


def test_a_pattern_lists_others_and_a_wrong_one_is_an_error():
    assert {teacher.type for teacher in known_teachers("efficientnet_lite")} > {"tf_efficientnet_lite1.in1k"}
    with pytest.raises(RadioplatError, match="no pretrained model of this name"):
        known_teachers("no_such_model")
