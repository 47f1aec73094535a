"""Fine-tuning on labels, what its checkpoint is good for, and one job from shards to an engine."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import torch
from wandb_files import artifacts, history, run_files

import radioplat
from radioplat.models.features import Features
from radioplat.models.student.student import Student
from radioplat.tracking.follow import CheckpointEvent, StepEvent
from radioplat.tracking.status import read_status

HAS_TENSORRT = importlib.util.find_spec("tensorrt_rtx_bindings") is not None
KEY, OTHER_KEY = "0123456789abcdef0123456789abcdef01234567", "tlt_encode_9f8e7d"


@pytest.fixture(scope="module")
def fine_tuned(make_spec, corpora, tmp_path_factory):
    """test_vit taught which photograph a crop is from: a folder a class, and labelled shards beside it."""
    spec = make_spec(
        tmp_path_factory.mktemp("train"),
        {
            "model": {"backbone": {"type": "test_vit", "kwargs": {"img_size": 64}}},
            "dataset": {"num_classes": 4, "train_dataset": {"images_dir": str(corpora / "folders")}},
            "train": {"num_epochs": 6, "checkpoint_interval": 6, "optim": {"lr": 2e-3, "policy": "cosine"}},
        },
    )
    events: list = []
    result = radioplat.train(spec, callbacks=[events.append], say=lambda line: None)
    return result, events


def test_fine_tuning_learns(fine_tuned):
    result, events = fine_tuned
    steps = [event.metrics for event in events if isinstance(event, StepEvent)]
    assert result.folder.name == "train" and len(steps) == 24
    assert np.mean([m["loss"] for m in steps[-6:]]) < 0.8 * np.mean([m["loss"] for m in steps[:6]])
    assert all(0 <= m["accuracy"] <= 1 for m in steps)


def test_it_is_pruned_by_the_gradients_of_its_labels(fine_tuned, tmp_path):
    from radioplat.tasks.prune.prune import prune

    changes = ("prune.score=taylor", "prune.score_batches=2", f"prune.results_dir={tmp_path}")
    report = prune(fine_tuned[0].folder / "experiment.yaml", changes)
    assert report.after.params < 0.9 * report.before.params
    assert radioplat.load_student(report.path).architecture.num_classes == 4


def test_a_folder_of_images_is_a_source_beside_tars(fine_tuned):
    from radioplat.data.loading.run_data import RunData
    from radioplat.spec.loading.load import load_spec

    folder = fine_tuned[0].folder
    data = RunData.load(folder / "data", load_spec(folder / "experiment.yaml").dataset.train_dataset)
    assert data.index.classes == ["astronaut", "chelsea", "coffee", "rocket"]
    assert np.bincount(data.index.source).tolist() == [24, 16, 18]
    assert data.order.mixture.shares == (2, 1, 1)
    row = int(np.flatnonzero(data.index.source == 2)[0])
    assert data.index.classes[data.index.label[row]] == data.index.key(row).partition("/")[0]


def test_its_checkpoint_is_a_teacher_and_a_student_by_path_alone(fine_tuned, make_spec, distil, tmp_path):
    path = str(fine_tuned[0].checkpoint)
    spec = make_spec(tmp_path, {"train": {"max_steps": 2}})
    spec["model"]["backbone"] = {"pretrained_backbone_path": path}
    spec["distill"] |= {"loss_type": "KL", "teacher": [{"name": "mine", "pretrained_teacher_model_path": path}]}
    del spec["teachers"]
    trail = distil(
        spec,
        "distill.teacher[1]={name: map, mode: spatial, loss_type: MSE}",
        f"distill.teacher[1].pretrained_teacher_model_path={path}",
    )
    terms = trail.events[0].metrics
    assert {"loss/mine/logits", "loss/map/spatial"} <= terms.keys()
    student = radioplat.load_student(trail.result.checkpoint)
    assert student.architecture.type == "test_vit" and student.head_names == ["mine", "map"]


@pytest.fixture(scope="module")
def chain(make_spec, tmp_path_factory):
    """One call: two epochs, then evaluation, ONNX and (where TensorRT is installed) an engine; W&B offline."""
    import wandb

    wandb.teardown()
    results = tmp_path_factory.mktemp("chain")
    then = ["evaluate", "export", *(["gen_trt_engine"] if HAS_TENSORRT else [])]
    spec = make_spec(
        results,
        {
            "distill": {"then": then},
            "wandb": {"mode": "offline", "project": "tests", "sync_tensorboard": True},
            "train": {"trackers": ["wandb", "tensorboard"]},
            "encryption_key": OTHER_KEY,
            "gen_trt_engine": {"tensorrt": {"compute_capabilities": ["SM89"]}},
        },
    )
    events: list = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_API_KEY", KEY)
        patch.setenv("NETRC", str(results / "netrc"))
        for name in ("WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
            patch.setenv(name, str(tmp_path_factory.mktemp(name)))
        lines: list[str] = []
        result = radioplat.distill(spec, callbacks=[events.append], say=lines.append)
        wandb.teardown()
    return result, events, lines


def test_callbacks_come_in_order(chain):
    kinds = [(type(event), event.step) for event in chain[1]]
    assert [step for kind, step in kinds if kind is StepEvent] == list(range(1, 9))
    # A checkpoint is told of once it is committed, which its thread does while steps go on.
    assert [step for kind, step in kinds if kind is CheckpointEvent] == [4, 8]
    assert all(kinds.index((StepEvent, step)) < kinds.index((CheckpointEvent, step)) for step in (4, 8))
    assert all(event.path.is_dir() for event in chain[1] if isinstance(event, CheckpointEvent))


def test_one_job_ends_in_a_report_an_onnx_file_and_an_engine(chain):
    result = chain[0]
    root = result.folder.parent
    evaluated, exported = result.evaluation, result.exported
    assert evaluated.report == root / "evaluate" / "report.html" and evaluated.report.stat().st_size > 10_000
    assert {"student", "untrained student", "lite0", "vit"} == set(evaluated.knn)
    page = evaluated.report.read_text(encoding="utf-8")
    assert "What teachers cost" in page and "cost/lite0" not in page  # a table, no curves
    assert set(evaluated.fidelity["student"]["lite0"]) == {"summary", "spatial"}
    assert exported.path == root / "export" / "student.onnx" and exported.max_abs_error < 1e-3
    tasks = ["evaluate", "export", *(["gen_trt_engine"] if HAS_TENSORRT else [])]
    assert (result.engine is None) is not HAS_TENSORRT and result.student == result.checkpoint
    for task in tasks:
        assert (root / task / "experiment.yaml").exists()
        assert [line["status"] for line in read_status(root / task / "status.json")][:: len(tasks)]
        assert read_status(root / task / "status.json")[-1]["status"] == "SUCCESS"


@pytest.mark.skipif(not HAS_TENSORRT, reason="the `engine` extra is not installed")
def test_the_engine(chain):
    built = chain[0].engine
    assert built.path.suffix == ".engine" and built.path.stat().st_size == built.bytes > 10_000
    assert built.compute_capabilities == ["SM89"]


def test_load_student_is_typed_and_usable(chain):
    student = radioplat.load_student(chain[0].folder / "model_latest")
    assert isinstance(student, Student) and not student.training and student.head_names == ["lite0", "vit"]
    images = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    with torch.inference_mode():
        features = student(images)
        head = student.head("lite0", features)
    assert isinstance(features, Features)
    assert head.summary.shape == (2, 1280) and head.spatial.shape[:3] == (2, 4, 4)
    assert torch.isfinite(head.summary).all()


def test_wandb_offline_run_of_a_real_run(chain):
    result = chain[0]
    (file,) = run_files(result.folder)
    rows = [row for row in history(file) if "loss" in row]
    assert [row["global_step"] for row in rows] == list(range(1, 9))
    logged = [event.metrics for event in chain[1] if isinstance(event, StepEvent)]
    for row, metrics in zip(rows, logged, strict=True):
        for name in (
            "loss",
            "loss/lite0/summary",
            "loss/lite0/spatial",
            "loss/vit/spatial",
            "lr",
            "images_per_s",
            "seconds/teacher/lite0",
            "seconds/teacher/vit",
        ):
            assert row[name] == pytest.approx(metrics[name]), name


def test_event_files_lie_beside_it_and_in_it(chain):
    folder = chain[0].folder
    (ours,) = (folder / "tensorboard").glob("*tfevents*")
    (kept,) = folder.glob("wandb/offline-run-*/files/tensorboard/*tfevents*")
    assert kept.read_bytes() == ours.read_bytes() and ours.stat().st_size > 1000


def test_wandb_has_the_pictures_and_what_was_made_of_what(chain):
    """The checkpoint that the training made is what the ONNX file was made of, and that the engine."""
    home = chain[0].folder.parent
    (trained,), (evaluated,), (exported,) = (run_files(home / task) for task in ("distill", "evaluate", "export"))
    ids = {task: (home / task / "wandb_run_id").read_text() for task in ("distill", "evaluate", "export")}
    assert ids["distill"] == ids["evaluate"] != ids["export"]  # an evaluation belongs to the run of the student
    assert any("evaluate/fidelity" in name for row in history(evaluated) for name in row)
    for folder, name in ((trained, "curves/loss_*.png"), (evaluated, "evaluate/pca_*.png")):
        assert list((folder.parent / "files" / "media" / "images").glob(name)), name
    (made,) = artifacts(trained)
    used, onnx = artifacts(exported)
    assert used[:3] == made[:3] and used[3] and onnx[1] == "onnx" and not onnx[3]
    assert "student.safetensors" in made[5]
    if HAS_TENSORRT:
        (built,) = run_files(home / "gen_trt_engine")
        (used, engine) = artifacts(built)
        assert used[:3] == onnx[:3] and used[3] and engine[1] == "engine"


def test_the_keys_are_nowhere(chain):
    result, _, lines = chain
    assert not any(key in line for line in lines for key in (KEY, OTHER_KEY))
    for path in result.folder.parent.rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        assert KEY.encode() not in content and OTHER_KEY.encode() not in content, path
