"""What a person types: `radioplat <task>`, and what it answers when the spec is wrong."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from radioplat.cli import main as cli
from radioplat.spec.loading.load import load_spec

ROOT = Path(__file__).parents[2]
TWO_TEACHERS = ROOT / "specs" / "radio_two_teachers.yaml"


@pytest.fixture
def radioplat(capfd, monkeypatch, tmp_path):
    """radioplat(*arguments) -> (exit status, stdout, stderr), run in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        try:
            status = cli.main([str(a) for a in arguments])
        except SystemExit as leave:  # argparse leaves so
            status = int(leave.code or 0)
        out, err = capfd.readouterr()
        assert "Traceback" not in out + err
        return status, out, err

    return run


@pytest.fixture
def spec_file(make_spec, tmp_path):
    """A spec that can run, as a file."""
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(make_spec(tmp_path / "results")))
    return path


def test_plan_accepts_the_two_teacher_example_and_names_the_missing_paths(radioplat):
    before = TWO_TEACHERS.read_bytes()
    status, _, err = radioplat("plan", "-e", TWO_TEACHERS)
    problems = [line for line in err.splitlines() if line.startswith("error")]
    assert status == 1 and len(problems) == 4
    for field, path in (
        ("dataset.train_dataset.tar_data_sources[0].root_dir", "/datasets/corpus_a"),
        ("dataset.train_dataset.tar_data_sources[1].root_dir", "/datasets/corpus_b"),
        ("distill.teacher[0].pretrained_teacher_model_path", "/weights/teacher_dinov2.pth"),
        ("distill.teacher[1].pretrained_teacher_model_path", "/weights/teacher_siglip.pth"),
    ):
        assert any(field in line and path in line for line in problems), field
    assert TWO_TEACHERS.read_bytes() == before


def test_plan_of_a_run_that_can_start(radioplat, spec_file):
    status, out, _ = radioplat("plan", "-e", spec_file)
    assert status == 0 and "this run can start" in out
    for word in (
        "student",
        "lite0",
        "vit",
        "parameters",
        "memory",
        "mixture: 2 : 1",
        "3 micro-batches of 2",
        "4 steps an epoch",
        "8 steps in all",
        "1 CPU worker",
    ):
        assert word in out, word
    assert not (spec_file.parent / "results" / "distill").exists()  # a plan leaves no run behind


def test_plan_of_one_source_and_of_a_cluster_that_is_not_started_yet(radioplat, spec_file, corpora):
    source = f"dataset.train_dataset.tar_data_sources=[{{root_dir: {corpora / 'a'}, steps_per_epoch: 4}}]"
    status, out, err = radioplat("plan", "-e", spec_file, source, "cluster.mode=ray")
    assert status == 0, err
    assert "mixture" not in out  # of one source there is none
    assert "decode: 1 decode task(s)\n" in out and "inf" not in out.split()


@pytest.mark.parametrize(
    "overrides, field, words",
    [
        (["train.num_epoch=2"], "train.num_epoch", "train.num_epochs"),
        (["train.num_epochs"], "train.num_epochs", "key=value"),
        (["train.num_epochs=two"], "train.num_epochs", "two"),
        (["distill.teacher[7].mode=spatial"], "distill.teacher[7].mode", "2"),
        (["dataset.img_size=70"], "dataset.img_size", "multiple of the student's patch 16"),
        (["distill.teacher[1].input_size=70"], "distill.teacher[1]", "multiple of the patch 16"),
        (
            ["distill.teacher[1].model.backbone.kwargs.depth=3"],
            "distill.teacher[1].pretrained_teacher_model_path",
            "does not fit the architecture",
        ),
        (
            ["distill.teacher[1].model.backbone.type=test_efficientnet"],
            "distill.teacher[1].pretrained_teacher_model_path|distill.teacher[1].model.backbone.kwargs",
            "img_size",
        ),
        (
            ["distill.teacher[0].model.backbone.type=tf_efficientnet_lite1"],
            "distill.teacher[0].pretrained_teacher_model_path",
            "does not fit the architecture",
        ),
        (
            ["distill.teacher[1].pretrained_teacher_model_path=google/siglip2-base-patch16-224"],
            "distill.teacher[1].pretrained_teacher_model_path",
            "radioplat weights fetch hf://google/siglip2-base-patch16-224",
        ),
        (["model.backbone.type=c_radio_v3_vit_base"], "model.backbone.type", "Nearest available"),
        (["model.backbone.kwargs.embed_dimm=48"], "model.backbone.kwargs", "embed_dimm"),
        (["model.backbone.kwargs.num_heads=5"], "model.backbone.kwargs", "divisible"),
        (["train.global_batch_size=7"], "train.global_batch_size", "not a multiple of dataset.batch_size 2"),
        (["distill.teacher[0].loss_type=KL"], "distill.teacher[0].loss_type", "BALANCED"),
        (["train.num_gpus=2"], "cluster.mode", "local mode is one process"),
        (["distill.teacher=[]"], "distill.teacher", "at least one teacher"),
        (["distill.then=[evaluat]"], "distill.then[0]", "evaluate"),
    ],
)
def test_plan_names_the_field(radioplat, spec_file, overrides, field, words):
    status, _, err = radioplat("plan", "-e", spec_file, *overrides)
    assert status == 1
    assert any(f in err for f in field.split("|")) and words in err, err


def test_every_problem_at_once(radioplat, spec_file):
    """Numbers outside their range come first, by themselves: what else is wrong may follow from them."""
    wrong = ["dataset.img_size=70", "train.offload=true", "dataset.val_dataset.tar_data_sources[0].root_dir=/nowhere"]
    status, _, err = radioplat("plan", "-e", spec_file, *wrong)
    assert status == 1
    for field in ("dataset.img_size", "train.offload", "dataset.val_dataset.tar_data_sources[0].root_dir"):
        assert field in err
    status, _, err = radioplat("plan", "-e", spec_file, "train.zero_stage=5", "train.optim.lr=.nan")
    assert status == 1 and "train.zero_stage" in err and "train.optim.lr" in err


def test_a_run_refuses_what_plan_refuses(radioplat, spec_file, tmp_path):
    status, _, err = radioplat("distill", "-e", spec_file, "dataset.img_size=70")
    assert status == 1 and "dataset.img_size" in err
    assert not list((tmp_path / "results" / "distill").glob("model_*"))


def test_spec_files_that_are_none(radioplat, tmp_path):
    for name, content in (("no", None), ("bad", b"a: [1"), ("list", b"- 1"), ("binary", b"\xff\xfe\0")):
        path = tmp_path / f"{name}.yaml"
        if content is not None:
            path.write_bytes(content)
        status, _, err = radioplat("plan", "-e", path)
        assert status == 1 and str(path) in err, name


def test_wrong_command_lines(radioplat):
    for arguments in (("distil",), ("plan",), ("plan", "-e")):
        status, _, err = radioplat(*arguments)
        assert status == 2 and "usage: radioplat" in err


def test_default_specs_read_back(radioplat, tmp_path):
    status, out, _ = radioplat("default_specs", "train.num_epochs=3")
    assert status == 0
    (tmp_path / "all.yaml").write_text(out)
    assert load_spec(tmp_path / "all.yaml") == load_spec(None, ["train.num_epochs=3"])


def test_index_says_what_is_there(radioplat, corpora, tmp_path):
    status, out, _ = radioplat("index", corpora / "a", "native_resolution_filter.min_short_side=100")
    assert status == 0
    for words in ("24 JPEG", "24 images, 4 classes", r"rejected by a filter +│ +24 │", r"min_short_side +│ +24 │"):
        assert re.search(words, out), words
    status, out, _ = radioplat("index", corpora / "folders", f"index_dir={tmp_path / 'index'}")
    assert status == 0 and "18 JPEG" in out and "3 classes" in out
    status, _, err = radioplat("index", tmp_path / "nothing")
    assert status == 1 and str(tmp_path / "nothing") in err


def test_the_installed_commands():
    """`radioplat` and TAO's `radio` stand beside the interpreter."""
    folder = Path(sys.executable).parent
    assert (folder / "radioplat").exists()
    done = subprocess.run([folder / "radio", "distill", "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "Distil a student" in done.stdout


def test_radio_is_an_alias(spec_file, capfd):
    assert cli.radio(["distill", "-e", str(spec_file), "train.max_steps=1"]) == 0
    out, err = capfd.readouterr()
    assert "at step 1" in out and "starts fresh" in err
    assert cli.radio(["distill", "-e", "/nowhere.yaml"]) == 1
    assert "/nowhere.yaml" in capfd.readouterr().err
