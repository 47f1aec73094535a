"""`plan TASK` for every task: it finds what the task itself would refuse, and starts nothing."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from PIL import Image

from radioplat.cli import main as cli
from radioplat.cli.parser import SPEC_TASKS
from radioplat.errors import RadioplatError
from radioplat.models.student.checkpoint import save_student
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.spec.loading.load import load_spec
from radioplat.tasks.compress.compress import compress
from radioplat.tasks.evaluate.evaluate import evaluate
from radioplat.tasks.export.engine import build_engine
from radioplat.tasks.export.export import export
from radioplat.tasks.inference.inference import inference
from radioplat.tasks.low_rank.low_rank import low_rank
from radioplat.tasks.plan.plan import TASKS, plan
from radioplat.tasks.plan.show import show
from radioplat.tasks.prune.prune import prune
from radioplat.tasks.quantize.quantize import quantize
from radioplat.tasks.quantize.sensitivity import sensitivity
from radioplat.tasks.train_upsampler.train_upsampler import train_upsampler
from radioplat.tasks.tune.tune import tune

SIZE = 32
RUN = {
    "evaluate": evaluate, "inference": inference, "prune": prune, "low_rank": low_rank, "quantize": quantize,
    "sensitivity": sensitivity, "export": export, "gen_trt_engine": build_engine, "compress": compress,
    "train_upsampler": train_upsampler, "tune": lambda spec: tune(spec, space=SPACE),
}  # fmt: skip
SPACE = {
    "task": "prune",
    "parameters": {"prune.amount": {"uniform": [0.25, 0.5]}},
    "objectives": [{"metric": "macs", "mode": "min"}],
    "budget": {"trials": 2},
}


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """A student, images, an ONNX file of one convolution."""
    home = tmp_path_factory.mktemp("home")
    torch.manual_seed(0)
    student = Student(
        StudentArchitecture("radio_vit_tiny_patch16", {"embed_dim": 48, "depth": 2, "num_heads": 3}, img_size=SIZE)
    )
    (home / "student").mkdir()
    save_student(student, student.state_dict(), home / "student")
    pixels = np.random.default_rng(0).integers(0, 256, (12, 48, 48, 3), dtype=np.uint8)
    for split in ("train", "val"):
        (home / split / "a").mkdir(parents=True)
        for i, image in enumerate(pixels):
            Image.fromarray(image).save(home / split / "a" / f"{split}{i}.png")
    shape = ["N", 3, SIZE, SIZE]
    weight = helper.make_tensor("w", TensorProto.FLOAT, [4, 3, 3, 3], np.ones(108, np.float32))
    graph = helper.make_graph(
        [helper.make_node("Conv", ["images", "w"], ["summary"])],
        "g",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("summary", TensorProto.FLOAT, ["N", 4, SIZE - 2, SIZE - 2])],
        [weight],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), str(home / "conv.onnx"))
    return home


def spec_of(home: Path, results: Path, *fields: str):
    images = [f"dataset.{name}_dataset.images_dir={home / folder}" for name, folder in (
        ("train", "train"), ("val", "val"), ("test", "val"), ("quant_calibration", "train"),
    )]  # fmt: skip
    tasks = ("evaluate", "inference", "prune", "low_rank", "quantize", "export", "compress")
    students = [f"{task}.checkpoint={home / 'student'}" for task in tasks]
    return load_spec(None, [
        f"results_dir={results}", f"dataset.img_size={SIZE}", "dataset.batch_size=4", *images, *students,
        "quantize.calibration_batches=2", "low_rank.ratio=0.5", "compress.stages=[prune, quantize]",
        f"gen_trt_engine.onnx_file={home / 'conv.onnx'}", "gen_trt_engine.backend=onnxruntime", *fields,
    ])  # fmt: skip


@pytest.mark.parametrize("task", [name for name in TASKS if name not in ("distill", "train", "train_upsampler")])
def test_a_task_that_can_start(task, home, tmp_path):
    results = tmp_path / "results"
    found = plan(spec_of(home, results), task=task, space=SPACE if task == "tune" else None)
    assert [str(problem) for problem in found.problems] == []
    assert "free" in found.facts["disk"] and len(found.facts) > 1
    assert {path.name for path in results.glob("*")} <= {"index"}, "nothing is started"


def test_metrics_that_were_not_requested_are_one_line(home, tmp_path, capsys):
    show(plan(spec_of(home, tmp_path), task="evaluate"))
    shown = capsys.readouterr().out
    assert shown.count("not asked for") == 1
    (listed,) = re.findall(r"^metrics: .*not asked for: (.*)$", shown, re.MULTILINE)
    names = re.findall(r"([\w -]+) \(evaluate\.", listed)
    assert len(names) == len(set(names)) and {"linear probe", "segmentation"} <= {name.strip() for name in names}


BROKEN = [
    ("evaluate", "dataset.val_dataset.images_dir=null", "dataset.val_dataset"),
    ("evaluate", "evaluate.checkpoint=nowhere", "evaluate.checkpoint"),
    ("evaluate", "evaluate.resolutions=[64, 64]", "evaluate.resolutions[1]"),
    ("inference", "dataset.test_dataset.images_dir=nowhere", "dataset.test_dataset.images_dir"),
    ("inference", "inference.trt_engine=none.engine", "inference"),
    ("prune", "prune.checkpoint=nowhere", "prune.checkpoint"),
    ("prune", "prune.amount=0.999", "prune.amount"),
    ("low_rank", "low_rank.checkpoint=nowhere", "low_rank.checkpoint"),
    ("low_rank", "low_rank.ratio=null", "low_rank"),
    ("quantize", "dataset.quant_calibration_dataset.images_dir=nowhere", "dataset.quant_calibration_dataset"),
    ("quantize", "quantize.default_layer_dtype=int3", "quantize"),
    ("sensitivity", "quantize.checkpoint=nowhere", "quantize.checkpoint"),
    ("export", "export.format=hf_native", "export"),
    ("export", "export.input_channel=1", "export.input_channel"),
    ("export", "export.calibration_cache=true;export.tensorrt_version=8.6", "export.calibration_cache"),
    ("gen_trt_engine", "gen_trt_engine.onnx_file=none.onnx", "gen_trt_engine.onnx_file"),
    ("gen_trt_engine", "gen_trt_engine.tensorrt.data_type=int8", "gen_trt_engine"),
    ("gen_trt_engine", "gen_trt_engine.trt_engine=a.plan", "gen_trt_engine.trt_engine"),
    ("compress", "compress.stages=[]", "compress.stages"),
    ("compress", "compress.stages=[quantize, prune]", "compress.stages[1]"),
    ("compress", "compress.checkpoint=nowhere", "compress.checkpoint"),
    ("tune", "prune.checkpoint=nowhere", "prune.checkpoint"),
    ("train_upsampler", "train.seed=1", "distill.teacher"),
]


@pytest.mark.parametrize(("task", "field", "where"), BROKEN)
def test_what_the_task_refuses_is_found_before(task, field, where, home, tmp_path):
    found = plan(
        spec_of(home, tmp_path / "plan", *field.split(";")), task=task, space=SPACE if task == "tune" else None
    )
    assert found.problems and any(problem.where.startswith(where) for problem in found.problems)
    with pytest.raises(RadioplatError) as refused:
        RUN[task](spec_of(home, tmp_path / "plan", *field.split(";")))
    assert {problem.message for problem in refused.value.problems} <= {problem.message for problem in found.problems}


def test_a_results_folder_that_cannot_be(home, tmp_path):
    (tmp_path / "file").write_text("")
    (problem,) = plan(spec_of(home, tmp_path / "file" / "results"), task="gen_trt_engine").problems
    assert problem.where == "results_dir" and "is a file" in problem.message
    (problem,) = plan(spec_of(home, "s3://bucket/results"), task="gen_trt_engine").problems
    assert problem.where == "results_dir" and "need a folder" in problem.message


def test_retraining_is_planned_too(home, tmp_path):
    fields = ("prune.retrain.epochs=1", "dataset.num_classes=3", "train.precision=fp16")
    found = plan(spec_of(home, tmp_path, *fields), task="prune")
    assert [p.where for p in found.problems if p.message.startswith("retraining: fp16")] == ["train.precision"]


def test_every_task_with_a_spec_is_planned(capsys):
    assert set(TASKS) == set(SPEC_TASKS)
    with pytest.raises(SystemExit):
        cli.main(["plan", "--help"])
    shown = capsys.readouterr().out
    assert all(f"\n    {task}" in shown for task in TASKS)
