"""The whole task on real images: every metric from one spec, in its files and its report; and what plan refuses."""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import skimage.data
import torch
import torch.nn.functional as F
from crowded_cells import crowded_cells
from PIL import Image

from radioplat.data.index.build import build_index
from radioplat.design.models import design_models
from radioplat.errors import SpecError
from radioplat.evaluation.measure.needs import missing
from radioplat.evaluation.metrics.metric import Inputs
from radioplat.models.pretrained.initial_weights import start_student
from radioplat.models.student.checkpoint import save_student
from radioplat.spec.checks.tasks.training_run import check
from radioplat.spec.loading.load import load_spec
from radioplat.tasks.evaluate.evaluate import evaluate
from radioplat.tasks.evaluate.show import show
from radioplat.tasks.plan.plan import plan
from radioplat.tracking.status import read_status

transformers = pytest.importorskip("transformers")

SCENES = {"astronaut": skimage.data.astronaut, "cat": skimage.data.chelsea, "cup_of_coffee": skimage.data.coffee}
MODELS = {"student", "untrained student", "clip"}


def crops(folder: Path, count: int, seed: int) -> str:
    """``count`` crops of 80 pixels a scene, one folder a class."""
    rng = np.random.default_rng(seed)
    for name, scene in SCENES.items():
        picture = scene()
        (folder / name).mkdir(parents=True)
        for i in range(count):
            y, x = (int(rng.integers(0, limit - 80)) for limit in picture.shape[:2])
            Image.fromarray(picture[y : y + 80, x : x + 80]).save(folder / name / f"{i}.png")
    return str(folder)


def composites(folder: Path, count: int) -> dict:
    """A piece of a brick wall on a lawn, and where it lies."""
    for name in ("images", "masks"):
        (folder / name).mkdir(parents=True)
    lawn, wall = skimage.data.grass(), skimage.data.brick()
    for i in range(count):
        rng = np.random.default_rng(i)
        top, left = rng.integers(0, 48, 2)
        mask = np.zeros((96, 96), np.uint8)
        mask[top : top + 40, left : left + 40] = 1
        y, x = rng.integers(0, 400, 2)
        image = np.where(mask == 1, wall[y : y + 96, x : x + 96], lawn[y : y + 96, x : x + 96])
        Image.fromarray(image).convert("RGB").save(folder / "images" / f"{i}.jpg")
        Image.fromarray(mask).save(folder / "masks" / f"{i}.png")
    return {"images_dir": str(folder / "images"), "masks_dir": str(folder / "masks"), "num_classes": 2}


def pairs(folder: Path, count: int) -> dict:
    """A lawn, and the same with a piece of a wall on it; the mask of one pair is missing."""
    for name in ("before", "after", "masks"):
        (folder / name).mkdir(parents=True)
    lawn, wall = skimage.data.grass(), skimage.data.brick()
    for i in range(count):
        rng = np.random.default_rng(100 + i)
        (top, left), (y, x) = rng.integers(0, 48, 2), rng.integers(0, 400, 2)
        before = lawn[y : y + 96, x : x + 96]
        after, mask = before.copy(), np.zeros((96, 96), np.uint8)
        mask[top : top + 40, left : left + 40] = 255
        after[mask > 0] = wall[y : y + 96, x : x + 96][mask > 0]
        for name, pixels in (("before", before), ("after", after), ("masks", mask)):
            Image.fromarray(pixels).save(folder / name / f"{i:03d}.png")
    (folder / "masks" / "007.png").unlink()
    places = {f"{name}_dir": str(folder / name) for name in ("before", "after", "masks")}
    light = {"decoder": "light", "light": {"width": 16, "steps": 20}}
    return places | {"class_values": [0, 255], "ignore_index": None} | light


@pytest.fixture(scope="module")
def base(tmp_path_factory, clip_folder) -> dict:
    """A spec with every metric, and the checkpoint of a student that took a few steps from its start."""
    root = tmp_path_factory.mktemp("evaluation")
    teacher = {
        "name": "clip",
        "model": {"backbone": {"type": "hf"}},
        "pretrained_teacher_model_path": str(clip_folder),
        "mode": "combo",
        "loss_type": "BALANCED",
        "summary_loss_type": "cosine",
    }
    student = {"type": "radio_vit_tiny_patch16", "kwargs": {"embed_dim": 48, "depth": 2, "num_heads": 3}}
    spec = {
        "results_dir": str(root / "results"),
        "model": {"backbone": student},
        "dataset": {
            "img_size": 64,
            "batch_size": 8,
            "workers": 1,
            "train_dataset": {"images_dir": crops(root / "train", 10, 0)},
            "val_dataset": {"images_dir": crops(root / "val", 6, 1)},
        },
        "train": {"global_batch_size": 8},
        "distill": {"mlp_hidden_size": 32, "teacher": [teacher]},
        "cluster": {"mode": "local"},
        "evaluate": {
            "batch_size": 7,
            "resolutions": [32, 96],
            "linear_probe": {"enable": True, "max_iter": 50},
            "segmentation": composites(root / "masked", 12) | {"max_iter": 50},
            "change": pairs(root / "pairs", 12),
            "correspondence": {"enable": True, "images": 10},
            "zero_shot": {"text_tower": str(clip_folder), "teacher": "clip", "templates": ["a photo of a {}.", "{}"]},
        },
    }
    loaded = load_spec(spec)
    made = start_student(loaded, design_models(loaded, "distill").architecture)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        moved = {name: value + 0.02 * torch.randn_like(value) for name, value in made.state_dict().items()}
    checkpoint = root / "model_epoch_001"
    checkpoint.mkdir()
    save_student(made, moved, checkpoint)
    spec["evaluate"]["checkpoint"] = str(checkpoint)
    return spec


@pytest.fixture(scope="module")
def everything(base):
    return evaluate(base)


def test_every_metric_is_measured_for_every_model(everything):
    found = everything.findings.results
    for metric in ("linear", "zero_shot", "segmentation", "change", "correspondence"):
        assert set(found[metric]) == MODELS
    assert set(found["knn"]) == MODELS | {"student at 32", "student at 96"}
    assert set(found["fidelity"]) == {"student", "student at 32", "student at 96", "untrained student"}
    for by_teacher in found["fidelity"].values():
        assert set(by_teacher["clip"]) == {"summary", "spatial"}
        assert all(-1 <= kind.cka <= 1 + 1e-9 for kind in by_teacher["clip"].values())
    # At 32 pixels the student's map is 2 x 2, and the teacher's at 64 pixels 4 x 4.
    grids = {"student": 16, "student at 32": 4, "student at 96": 16}
    assert {n: found["fidelity"][n]["clip"]["spatial"].count for n in grids} == {n: 18 * g for n, g in grids.items()}
    assert [(p.low, p.high) for p in found["agreement"]["backbone"]] == [(32, 64), (32, 96), (64, 96)]
    assert set(found["agreement"]) == {"backbone", "clip"}
    assert found["correspondence"]["clip"].images == 10 and found["segmentation"]["clip"].images == 3
    assert found["change"]["student"].decoder == "light" and found["change"]["clip"].images == 3
    (line,) = everything.findings.absent
    assert line == "change: left out 1 no_mask (007)"


def test_a_teacher_s_zero_shot_accuracy_is_that_of_transformers_own_model(everything, base, clip_folder):
    model = transformers.CLIPModel.from_pretrained(clip_folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(clip_folder)
    names = ["astronaut", "cat", "cup of coffee"]
    norm = [torch.tensor(v).view(3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
    right = []
    with torch.no_grad():
        texts = []
        for name in names:
            ids = [tokenizer(t.format(name), return_tensors="pt")["input_ids"] for t in ("a photo of a {}.", "{}")]
            each = torch.cat([model.get_text_features(input_ids=i).pooler_output for i in ids])
            texts.append(F.normalize(F.normalize(each, dim=1).mean(0), dim=0))
        for label, scene in enumerate(("astronaut", "cat", "cup_of_coffee")):
            for file in sorted(Path(base["dataset"]["val_dataset"]["images_dir"], scene).iterdir()):
                picture = Image.open(file).resize((64, 64), Image.Resampling.BILINEAR)
                pixels = (torch.from_numpy(np.array(picture)).permute(2, 0, 1) / 255 - norm[0]) / norm[1]
                image = model.get_image_features(pixel_values=pixels[None]).pooler_output[0]
                right.append(int((torch.stack(texts) @ F.normalize(image, dim=0)).argmax()) == label)
    # Ours is rounded to bf16, as features are sent, and resized by another library: one image may lie on the border.
    assert everything.findings.results["zero_shot"]["clip"].top1 == pytest.approx(np.mean(right), abs=1.5 / 18)
    assert everything.findings.results["zero_shot"]["clip"].count == 18


def test_all_of_it_is_in_the_report_in_results_and_in_the_diary(everything):
    page = everything.report.read_text(encoding="utf-8")
    for title in (
        "Fidelity to each teacher",
        "Fidelity at each resolution",
        "Agreement of the student between resolutions",
        "kNN on held-out images",
        "Linear probe",
        "Zero-shot classification",
        "Segmentation by a linear layer on frozen maps",
        "Change by a light decoder on frozen maps",
        "Correspondence under known homographies",
    ):
        assert title in page, title
    assert crowded_cells(page) == []
    # All models; the student at each size; the teacher beside those; neighbours; what decoders say of pixels, and of
    # change.
    assert page.count("data:image/png") == 6
    results = json.loads((everything.folder / "results.json").read_text())
    assert results["linear"]["student"]["top1"] == everything.findings.results["linear"]["student"].top1
    assert len(results["agreement"]["clip"]) == 3 and results["segmentation"]["clip"]["miou"] > 0
    kpi = read_status(everything.folder / "status.json")[-1]["kpi"]
    for name in (
        "linear_probe/student",
        "zero_shot/clip",
        "miou/student",
        "change_f1/clip",
        "pck@0.1/student",
        "agreement/backbone/32-64",
        "fidelity/student at 96/clip/spatial",
    ):
        assert name in kpi, name


def test_the_terminal_shows_one_number_a_cell(everything, capsys):
    show(everything)
    printed = capsys.readouterr().out
    assert "centered cosine" in printed and crowded_cells(printed) == []
    assert crowded_cells("│ a │ 0.239 (0.371, 0.179) │ 1.000/0.9 │ fp32 │") == [" 0.239 (0.371, 0.179) ", " 1.000/0.9 "]


def test_metrics_do_not_disturb_each_other(everything, base, tmp_path):
    alone = copy.deepcopy(base) | {"results_dir": str(tmp_path)}
    alone["evaluate"] = {"checkpoint": base["evaluate"]["checkpoint"], "batch_size": 7, "cka_rows": 0}
    found = evaluate(alone)
    assert found.knn == {name: everything.knn[name] for name in MODELS}
    for student in ("student", "untrained student"):
        for kind in ("summary", "spatial"):
            one, other = (x.fidelity[student]["clip"][kind] for x in (found, everything))
            assert one.centered == pytest.approx(other.centered, abs=1e-6) and one.cka is None
    assert len(found.findings.absent) == 1
    page = found.report.read_text(encoding="utf-8")
    assert "linear probe (evaluate.linear_probe.enable)" in page


def test_knn_at_a_resolution_is_that_of_an_evaluation_there(everything, base, tmp_path):
    alone = copy.deepcopy(base) | {"results_dir": str(tmp_path)}
    alone["dataset"]["val_img_size"] = 96
    alone["evaluate"] = {"checkpoint": base["evaluate"]["checkpoint"], "batch_size": 7, "cka_rows": 0}
    found = evaluate(alone)
    assert found.knn["student"] == everything.knn["student at 96"]
    one, other = found.fidelity["student"]["clip"], everything.fidelity["student at 96"]["clip"]
    assert one["summary"].centered == pytest.approx(other["summary"].centered, abs=1e-6)


def test_pictures_of_every_model_and_size_have_enough_positions(everything):
    maps = everything.findings.sample.maps
    students = {"student", "student at 32", "student at 96", "untrained student"}
    assert set(maps) == students | {f"{name}/clip" for name in students} | {"clip"}
    assert {name: m.shape[:3] for name, m in maps.items() if min(m.shape[1:3]) < 14 or len(m) != 4} == {}
    page = everything.report.read_text(encoding="utf-8")
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", page)
    assert captions[0].startswith("Equal colours are equal features") and captions[3].startswith("Held-out images")


def test_images_that_are_cut_off_after_the_last_batch_cost_a_picture_and_no_figure(everything, base, tmp_path):
    cut = copy.deepcopy(base) | {"results_dir": str(tmp_path / "results")}
    shutil.copytree(base["dataset"]["train_dataset"]["images_dir"], tmp_path / "train")
    cut["dataset"]["train_dataset"]["images_dir"] = str(tmp_path / "train")
    cut["evaluate"] = {"checkpoint": base["evaluate"]["checkpoint"], "batch_size": 7, "cka_rows": 0}

    def cut_off(done: int, total: int) -> None:
        for file in (tmp_path / "train").rglob("*.png") if done == total else ():
            os.truncate(file, 0)

    found = evaluate(cut, progress=cut_off)
    assert found.knn == {name: everything.knn[name] for name in MODELS}
    assert [line for line in found.notes() if line.startswith("nearest training images: not drawn")], found.notes()


def test_held_out_images_that_are_cut_off_after_the_last_batch_cost_a_picture_and_no_figure(everything, base, tmp_path):
    cut = copy.deepcopy(base) | {"results_dir": str(tmp_path / "results")}
    shutil.copytree(base["dataset"]["val_dataset"]["images_dir"], tmp_path / "val")
    cut["dataset"]["val_dataset"]["images_dir"] = str(tmp_path / "val")
    cut["evaluate"] = {"checkpoint": base["evaluate"]["checkpoint"], "batch_size": 7, "cka_rows": 0}

    def cut_off(done: int, total: int) -> None:
        for file in (tmp_path / "val").rglob("*.png") if done == total else ():
            os.truncate(file, 0)

    found = evaluate(cut, progress=cut_off)
    assert found.knn == {name: everything.knn[name] for name in MODELS}
    assert [line for line in found.notes() if line.startswith("maps of features: not drawn")], found.notes()


def changed(base: dict, tmp_path: Path, changes: dict) -> dict:
    spec = copy.deepcopy(base)
    for path, value in changes.items():
        *sections, last = path.split(".")
        at = spec
        for section in sections:
            at = at[section]
        at[last] = value
    return spec | {"results_dir": str(tmp_path)}


def flat(base: dict) -> str:
    """Images without labels."""
    return str(Path(base["dataset"]["train_dataset"]["images_dir"]) / "cat")


def test_a_good_spec_passes_and_says_what_it_will_measure(base, tmp_path):
    found = plan(load_spec(changed(base, tmp_path, {"evaluate.resolutions": []})))
    assert not found.problems
    assert "(evaluate.resolutions)" in found.facts["evaluation"]
    assert "linear_probe" not in found.facts["evaluation"]
    assert "segmentation: 9 training and 3 held-out masks; change: 8 training" in found.facts["evaluation"]
    assert "left out 1 no_mask (007)" in found.facts["evaluation"]


FIELDS = {
    "evaluate.zero_shot.text_tower": (None, "needs a text tower"),
    "evaluate.zero_shot.teacher": ("sam", "Teachers with a summary: clip"),
    "evaluate.zero_shot.templates": (["a photo"], "one {}"),
    "evaluate.zero_shot.class_names": (["cat", "cat"], "the same name"),
    "evaluate.correspondence.thresholds": ([], "at least one threshold"),
    "evaluate.linear_probe.weight_decays": ([], "at least one"),
    "evaluate.segmentation.num_classes": (1, "number of classes"),
    "evaluate.segmentation.masks_dir": (None, "the folder of their masks"),
}
NUMBERS = {
    "evaluate.correspondence.thresholds[0]": ("evaluate.correspondence.thresholds", [10], "at most 1"),
    "evaluate.correspondence.max_zoom": ("evaluate.correspondence.max_zoom", 0.5, "at least 1 and at most 4"),
    "evaluate.linear_probe.held_out": ("evaluate.linear_probe.held_out", 0, "above 0 and below 1"),
    "evaluate.knn_temperature": ("evaluate.knn_temperature", 0, "above 0"),
    "evaluate.cka_rows": ("evaluate.cka_rows", 2, "at least 4 or 0"),
}


def told(problems, where: str, words: str) -> bool:
    return any(p.where == where and words in str(p) for p in problems)


def test_fields_that_make_no_sense_are_told_all_at_once(base, tmp_path):
    spec = load_spec(changed(base, tmp_path, {name: value for name, (value, _) in FIELDS.items()}))
    problems = check(spec)
    for name, (_, words) in FIELDS.items():
        assert told(problems, name, words), (name, problems)
    with pytest.raises(SpecError) as caught:
        load_spec(changed(base, tmp_path, {name: value for name, value, _ in NUMBERS.values()}))
    for where, (_, _, words) in NUMBERS.items():
        assert any(p.where.endswith(where) and words in str(p) for p in caught.value.problems), (where, caught.value)
    twice = load_spec(changed(base, tmp_path, {"evaluate.resolutions": [32, 64, 32]}))
    assert told(check(twice), "evaluate.resolutions[2]", "given twice")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {
                "evaluate.resolutions": [64, 100],
                "evaluate.segmentation.masks_dir": "/nowhere",
                "evaluate.zero_shot.text_tower": "/nowhere",
                "dataset.train_dataset.images_dir": "FLAT",
            },
            {
                "evaluate.resolutions[1]": "Take 96",
                "evaluate.segmentation.masks_dir": "no such folder",
                "evaluate.zero_shot.text_tower": "config.json",
                "dataset.train_dataset": "linear probe needs labelled",
            },
        ),
        (
            {"evaluate.zero_shot.class_names": ["cat", "dog"]},
            {"evaluate.zero_shot.class_names": "labels go up to 2, and there are 2 names"},
        ),
    ],
)
def test_what_cannot_be_had_is_refused_before_anything_is_encoded(base, tmp_path, changes, expected):
    spec = changed(base, tmp_path, {path: flat(base) if v == "FLAT" else v for path, v in changes.items()})
    problems, seen = plan(load_spec(spec)).problems, []
    with pytest.raises(SpecError) as error:
        evaluate(spec, progress=lambda *done: seen.append(done))
    for where, words in expected.items():
        assert told(problems, where, words) and told(error.value.problems, where, words), (where, problems)
    assert not seen


def test_zero_shot_without_labels(base, tmp_path):
    spec = load_spec(changed(base, tmp_path, {"dataset.val_dataset.images_dir": flat(base)}))
    limit = spec.dataset.max_pixels
    index = build_index(spec.dataset.val_dataset, "dataset.val_dataset", tmp_path / "index", max_pixels=limit)
    problems = missing(spec, Inputs(val=index))
    assert told(problems, "dataset.val_dataset", "zero-shot classification needs labelled")


def test_a_text_tower_of_another_width(base, tmp_path, clip_folder):
    other = shutil.copytree(clip_folder, tmp_path / "other")
    raw = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(raw | {"projection_dim": 30}))
    spec = changed(base, tmp_path, {"evaluate.zero_shot.text_tower": str(other)})
    loaded = load_spec(spec)
    (problem,) = missing(loaded, Inputs(design_models(loaded, "distill").architecture))
    assert problem.where == "evaluate.zero_shot.text_tower" and "30 dimensions" in problem.message
