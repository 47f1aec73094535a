"""A mistyped name is reported before torch or Ray is imported, whatever the command, with the nearest name."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import radioplat
from radioplat.cli.main import main
from radioplat.cli.parser import GROUPS, TASKS, Command, add_spec
from radioplat.spec.checks.missing_paths import missing_paths

# In one process, one command after another: the first that imports one of them is the one that is named.
RUN = """
import json, sys
from radioplat.cli.main import main
for words in json.loads(sys.argv[1]):
    code = main(words)
    heavy = {"torch", "ray", "pyarrow"} & sys.modules.keys()
    assert code == 1 and not heavy, (words, code, heavy)
"""
COMMANDS: dict[tuple[str, ...], Command] = {(name,): command for name, command in TASKS.items()}
COMMANDS |= {(name, verb): command for name, (_, verbs) in GROUPS.items() for verb, command in verbs.items()}
OF_A_SPEC = [list(words) for words, command in COMMANDS.items() if command.arguments is add_spec]
OTHERS = [["tune", "--space", "x"], ["plan"], ["show", "data", "2"]]
OF_A_PATH = [
    *(["diagnose"], ["ledger"], ["index"], ["migrate", "run"], ["migrate", "tao"], ["migrate", "lightly"]),
    *(["weights", "inspect"], ["weights", "convert"], ["lint"], ["profile"]),
]


def test_no_command_imports_torch_or_ray_before_it_has_read_its_arguments(tmp_path):
    missing = str(tmp_path / "no")
    (wrong := tmp_path / "wrong.yaml").write_text("train: {num_epoch: 3}")
    words = [[*command, "-e", spec] for command in OF_A_SPEC + OTHERS for spec in (f"{missing}.yaml", str(wrong))]
    words += [[*command, missing] for command in OF_A_PATH] + [["pack", missing, missing]]
    assert len(words) > 40
    done = subprocess.run([sys.executable, "-c", RUN, json.dumps(words)], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-1000:]
    assert done.stderr.count("Did you mean train.num_epochs?") == len(OF_A_SPEC + OTHERS)
    assert done.stderr.count("it does not exist") == 7 and "Traceback" not in done.stderr


MISSING = """
model: {backbone: {type: resnet18}}
dataset:
  img_size: 64
  train_dataset: {tar_data_sources: [{root_dir: "nowhere/{000..003}.tar"}]}
  val_dataset: {images_dir: nowhere/val}
train: {num_gpus: 1, max_steps: 2, pretrained_model_path: nowhere/start.pth}
distill:
  teacher: [{name: t, model: {backbone: {type: resnet18}}, pretrained_teacher_model_path: nowhere/t.pth}]
cluster: {mode: local}
"""
CHECKPOINTS = ["evaluate", "inference", "prune", "low_rank", "quantize", "compress", "export"]


def test_missing_paths_are_reported_before_torch_as_they_are_after_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("spec.yaml").write_text(MISSING)
    words = [["distill", "-e", "spec.yaml"]]
    words += [[task, "-e", "spec.yaml", f"{task}.checkpoint=nowhere/x"] for task in CHECKPOINTS]
    words += [["sensitivity", "-e", "spec.yaml", "quantize.checkpoint=nowhere/x"]]
    done = subprocess.run([sys.executable, "-c", RUN, json.dumps(words)], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-1000:]
    problems = radioplat.plan("spec.yaml").problems
    assert [problem.where for problem in problems] == [
        "distill.teacher[0].pretrained_teacher_model_path",
        "train.pretrained_model_path",
        "dataset.train_dataset.tar_data_sources[0].root_dir",
        "dataset.val_dataset.images_dir",
    ]
    run = [f"error {problem}" for problem in problems]
    (checkpoint,) = radioplat.plan("spec.yaml", ["export.checkpoint=nowhere/x"], task="export").problems
    tasks = [f"error {checkpoint}".replace("export.", f"{task}.") for task in (*CHECKPOINTS, "quantize")]
    assert done.stderr.splitlines() == [*run, *tasks]


def test_paths_that_a_command_does_not_read_may_be_missing():
    sections = yaml.safe_load(MISSING)
    overrides = ["evaluate.checkpoint=nowhere/x", "train.pretrained_model_path=null"]
    spec = radioplat.load_spec(sections, overrides)
    of_train = ["dataset.train_dataset.tar_data_sources[0].root_dir", "dataset.val_dataset.images_dir"]
    assert [problem.where for problem in missing_paths(spec, "train")] == of_train
    for unread in ("gen_trt_engine", "tune", "show"):
        assert list(missing_paths(spec, unread)) == []
    models = ["evaluate.models=[{name: a, path: b}]"]
    assert list(missing_paths(radioplat.load_spec(spec, models), "evaluate")) == []
    remote = ["s3://bucket/a", "gs://bucket/b", "hf://org/c"]
    elsewhere = [
        f"dataset.train_dataset.tar_data_sources.0.root_dir={remote[0]}",
        f"dataset.val_dataset.images_dir={remote[1]}",
        f"distill.teacher.0.pretrained_teacher_model_path={remote[2]}",
    ]
    assert list(missing_paths(radioplat.load_spec(spec, elsewhere), "distill")) == []
    pool = [*elsewhere[:2], "teachers.t={pool: shared}"]
    assert list(missing_paths(radioplat.load_spec(spec, pool), "distill")) == []


@pytest.mark.parametrize(
    ("words", "near"), [(["distil", "-e", "x"], "distill"), (["plan", "trian", "-e", "x"], "train")]
)
def test_the_nearest_word_is_proposed(words, near, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(words)
    assert f"Did you mean '{near}'?" in capsys.readouterr().err
