"""Validations by two and three ranks give the figures of one process, and fail on all ranks alike."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import skimage.data
import torch
import torch.distributed as dist
from drawn_detector import SIZE, drawn_detector
from forked import run_ranks
from PIL import Image
from safetensors.torch import save_file

from benchmarks.composites import write_set
from radioplat.common.ranks import Ranks
from radioplat.data.detection.split import read_split
from radioplat.design.tasks.registry import TASKS
from radioplat.errors import RadioplatError
from radioplat.evaluation.detection.measure_detector import measure_detector
from radioplat.evaluation.measure.images import open_images
from radioplat.evaluation.measure.measure import measure
from radioplat.evaluation.metrics.accuracy import Accuracy
from radioplat.evaluation.metrics.knn import Knn
from radioplat.evaluation.metrics.metric import Setup
from radioplat.evaluation.models.evaluated_model import EvaluatedModel, StudentHeads, student_encoder
from radioplat.models.detectors.checkpoint import save_detector
from radioplat.models.student.checkpoint import load_student, save_student
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.spec.loading.load import load_spec

pytestmark = pytest.mark.timeout(1200)
SCENES = {"astronaut": skimage.data.astronaut, "cat": skimage.data.chelsea, "coffee": skimage.data.coffee}
WORLDS = (2, 3)
ARCHITECTURE = StudentArchitecture(
    "radio_vit_tiny_patch8", {"embed_dim": 32, "depth": 2, "num_heads": 2}, img_size=32, num_classes=3
)


def crops(folder: Path, count: int, seed: int) -> None:
    """Labelled crops of three photographs, one of them damaged."""
    rng = np.random.default_rng(seed)
    for name, scene in SCENES.items():
        picture = scene()
        (folder / name).mkdir(parents=True)
        for i in range(count):
            y, x = (int(rng.integers(0, limit - 40)) for limit in picture.shape[:2])
            Image.fromarray(picture[y : y + 40, x : x + 40]).save(folder / name / f"{i}.png")
    path = folder / "cat" / "1.png"
    path.write_bytes(path.read_bytes()[:600])


def student_spec(folder: Path, index: str = "index") -> dict:
    """29 training and 17 held-out images that can be read, in batches of 4."""
    return {
        "results_dir": str(folder / "results"),
        "model": {"backbone": {"type": "radio_vit_tiny_patch8"}},
        "dataset": {
            "img_size": 32, "batch_size": 4, "workers": 1, "num_classes": 3, "knn_validation": True,
            "index_dir": str(folder / index),
            "train_dataset": {"images_dir": str(folder / "train")},
            "val_dataset": {"images_dir": str(folder / "val")},
        },
        "train": {"enable_ema": True},
        "evaluate": {"knn_k": 5},
    }  # fmt: skip


def detector_spec(folder: Path) -> dict:
    """11 held-out images, one of them damaged, in batches of 2."""
    return {
        "results_dir": str(folder / "results"),
        "model": {"task": "detection"},
        "dataset": {
            "img_size": SIZE, "batch_size": 2, "workers": 1,
            "val_dataset": {"images_dir": str(folder / "boxes"), "coco": str(folder / "boxes.json")},
        },
    }  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Images of both tasks, a classifier's checkpoint with averages, and a detector's."""
    root = tmp_path_factory.mktemp("validate")
    crops(root / "train", 10, 0)
    crops(root / "val", 6, 1)
    torch.manual_seed(0)
    student, average = Student(ARCHITECTURE), Student(ARCHITECTURE)
    (root / "student").mkdir()
    save_student(student, student.state_dict(), root / "student")
    save_file({name: p.detach().clone() for name, p in average.named_parameters()}, root / "student/ema.safetensors")
    images, annotations = write_set(root / "composites", 11, True, SIZE)
    images.rename(root / "boxes")
    annotations.rename(root / "boxes.json")
    damaged = sorted((root / "boxes").iterdir())[4]
    damaged.write_bytes(damaged.read_bytes()[: damaged.stat().st_size // 2])
    save_detector(drawn_detector(), root / "detector")
    return root


def run_of(spec: dict, folder: Path) -> SimpleNamespace:
    return SimpleNamespace(
        spec=load_spec(spec), architecture=ARCHITECTURE, teachers=[], folder=folder, feature_cache=None
    )


def caught(action) -> list:
    """The error of ``action``, as text, and whether all ranks agree on it."""
    try:
        action()
    except (RadioplatError, OSError) as error:
        return [type(error).__name__, str(error), getattr(error, "agreed", None)]
    return []


def work(folder: Path) -> None:
    """One rank: print the figures, and the errors of validations that fail."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    waits: list[str] = []
    ranks = Ranks(rank, world, torch.device("cpu"), lambda: counted(waits))
    classify, detect = TASKS["classify"], TASKS["detect"]
    # Only rank 0 sees the checkpoints; with three ranks each has indexes of its own.
    place = folder if rank == 0 else Path("/nowhere")
    spec = student_spec(folder, f"index{rank}" if world == 3 else "index")
    answer = {
        "student": classify.validate(run_of(spec, folder), place / "student", ranks).kpi,
        "detector": detect.validate(run_of(detector_spec(folder), folder), place / "detector", ranks).kpi,
        "waits": len(waits),
    }
    unlabelled = copy.deepcopy(spec)
    unlabelled["dataset"]["val_dataset"]["images_dir"] = str(folder / "val/cat")
    unlabelled["dataset"]["index_dir"] = str(folder / "unlabelled")
    answer["no labels"] = classify.validate(run_of(unlabelled, folder), place / "student", ranks).kpi
    wrong = copy.deepcopy(spec)
    wrong["dataset"]["val_dataset"]["images_dir"] = str(folder / "absent")
    others = copy.deepcopy(spec)
    if rank == world - 1:  # this rank alone has other files under this name
        others["dataset"]["val_dataset"]["images_dir"] = str(folder / "train")
        others["dataset"]["index_dir"] = str(folder / "other_index")
    failing = {
        "no checkpoint": (spec, "absent"),
        "no images": (wrong, "student"),
        "other images": (others, "student"),
    }
    for name, (given, checkpoint) in failing.items():
        answer[name] = caught(lambda: classify.validate(run_of(given, folder), place / checkpoint, ranks))  # noqa: B023
    print(json.dumps(answer))
    dist.barrier()
    dist.destroy_process_group()


class counted:
    """A context that counts how often it is entered."""

    def __init__(self, into: list[str]) -> None:
        self._into = into

    def __enter__(self) -> None:
        self._into.append("")

    def __exit__(self, *error: object) -> None:
        pass


@pytest.fixture(scope="module")
def answers(folder) -> dict[int, list[dict]]:
    """What each rank printed, by number of ranks."""
    found = {}
    for world in WORLDS:
        outputs = run_ranks(work, folder, world=world, seconds=550)
        found[world] = [json.loads(text.strip().splitlines()[-1]) for text in outputs]
    return found


def test_a_student_has_the_figures_of_one_process(folder, answers):
    spec = load_spec(student_spec(folder))
    student = load_student(folder / "student", ema=True)
    models = {"student": EvaluatedModel(student_encoder(student), 32, StudentHeads(student))}
    bank, queries, _ = open_images(spec, {32})
    setup = Setup(spec, models, {}, len(queries.rows))
    knn, accuracy = Knn(setup), Accuracy(setup)
    measure(setup, [knn, accuracy], bank, queries)
    assert len(setup.training.labels) == 29 and len(setup.held_out.labels) == 17
    nearest, own = knn.result()["student"], accuracy.result()["student"]
    expected = {
        "knn/top1": nearest.top1, "knn/top5": nearest.top5, "accuracy/top1": own.top1, "accuracy/top5": own.top5
    }  # fmt: skip
    assert 0 < expected["knn/top1"] < 1
    for world in WORLDS:
        assert [answer["student"] for answer in answers[world]] == [expected] * world


def test_a_detector_has_the_figures_of_one_process(folder, answers):
    spec = load_spec(detector_spec(folder))
    detector = drawn_detector()
    split = read_split(spec.dataset.val_dataset, detector.architecture.class_names, "")
    result = measure_detector(detector.detect, split, SIZE, 2)
    assert result.images == 10 and sum(result.unreadable.values()) == 1 and result.coco.map is not None
    for world in WORLDS:
        assert [answer["detector"] for answer in answers[world]] == [result.kpi()] * world


def test_each_exchange_is_a_wait_for_the_others(answers):
    counts = {len({answer["waits"] for answer in answers[world]}) for world in WORLDS}
    assert counts == {1} and answers[2][0]["waits"] > 10


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("no checkpoint", "is not a checkpoint folder"),
        ("no images", "absent"),
        ("other images", "finds other images than worker 0"),
    ],
)
def test_what_fails_on_one_rank_fails_on_all_with_its_words(answers, case, words):
    for world in WORLDS:
        first, *rest = (answer[case] for answer in answers[world])
        assert words in first[1] and first[2] is True
        assert rest == [first] * (world - 1)


def test_without_labels_there_is_no_knn_on_any_rank(answers):
    for world in WORLDS:
        assert [answer["no labels"] for answer in answers[world]] == [{}] * world
