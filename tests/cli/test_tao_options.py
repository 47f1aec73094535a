"""TAO's older command lines, as its pages print them: what they set here, and what they are answered."""

from __future__ import annotations

import pytest

from radioplat.cli import main as cli
from radioplat.cli.main import main
from radioplat.cli.parser import GROUPS, TASKS, add_spec, build_parser
from radioplat.cli.tao_options import with_tao_options
from radioplat.errors import SpecError
from radioplat.spec.loading.load import load_spec


def spec_of(*arguments: str):
    """The spec that a command line means."""
    args = with_tao_options(build_parser("radioplat").parse_args(arguments))
    return load_spec(args.spec, args.overrides)


@pytest.fixture
def spec_file(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text("results_dir: elsewhere\n")
    return str(path)


@pytest.mark.parametrize("command", ["distill", "train", "quantize", "compress", "plan"])
def test_a_training_command(command, spec_file, capsys):
    """tao train detectnet_v2 -e SPEC -r DIR -k KEY -n NAME --gpus N, of the post on QAT; --use_amp is FP16."""
    line = (command, "-e", spec_file, "-r", "runs/my run", "-k", "nvidia_tlt", "-n", "final", "--gpus", "4")
    spec = spec_of(*line, "--use_amp", "train.num_epochs=7")
    assert spec.results_dir == "runs/my run" and spec.train.num_gpus == 4 and spec.train.precision.value == "fp16"
    assert spec.train.num_epochs == 7
    said = capsys.readouterr().err
    assert "-k: checkpoints are not encrypted" in said and "nvidia_tlt" not in said
    assert "-n: checkpoints are named by epoch and step" in said
    assert spec_of(command, "--experiment_spec_file", spec_file).results_dir == "elsewhere"
    assert spec_of(command, "-e", spec_file, "-r", "007").results_dir == "007"


WITH_SPEC = [(name,) for name, command in TASKS.items() if command.arguments is add_spec]
WITH_SPEC += [("tune", "--space", "space.yaml"), ("plan",), ("show", "data")]
WITH_SPEC += [("teachers", verb) for verb, command in GROUPS["teachers"][1].items() if command.arguments is add_spec]


@pytest.mark.parametrize("command", WITH_SPEC, ids=" ".join)
@pytest.mark.parametrize("name", ["--exp", "--experiment", "--experiment_spec", "--experiment_spec_file"])
def test_names_of_the_spec(command, name, spec_file):
    """TAO's commands take abbreviations too."""
    for words in ([name, spec_file], [f"{name}={spec_file}"]):
        assert build_parser("radioplat").parse_args([*command, *words]).spec == spec_file


def test_evaluate(spec_file):
    spec = spec_of("evaluate", "-e", spec_file, "-m", "run/model_epoch_001", "-k", "key", "--gpus", "2")
    assert spec.evaluate.checkpoint == "run/model_epoch_001" and spec.evaluate.num_gpus == 2
    assert spec.train.num_gpus == 1


def test_export(spec_file):
    line = ("export", "-e", spec_file, "-m", "run/latest", "-o", "out.onnx", "-k", "key", "--cal_cache_file", "c.bin")
    spec = spec_of(*line, "--force_ptq")
    assert (spec.export.checkpoint, spec.export.onnx_file) == ("run/latest", "out.onnx")
    assert spec.export.calibration_cache == "c.bin" and spec.export.force_ptq is True


@pytest.mark.parametrize(
    ("option", "ours"),
    [
        (("--data_type", "int8"), "radioplat quantize"),
        (("--batch_size", "4"), "export.batch_size"),
        (("--engine_file", "x.engine"), "radioplat gen_trt_engine"),
    ],
)
def test_what_export_does_not_do_names_ours(option, ours, spec_file, capsys):
    with pytest.raises(SystemExit) as left:
        main(["export", "-e", spec_file, *option])
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert option[0] in said and ours in said


def test_a_field_that_is_set_twice(spec_file, capsys):
    with pytest.raises(SpecError, match="--gpus sets it, and train.num_gpus=2 does too"):
        spec_of("distill", "-e", spec_file, "--gpus", "4", "train.num_gpus=2")
    assert main(["plan", "-e", spec_file, "-r", "here", "results_dir=there"]) == 1
    assert "results_dir" in capsys.readouterr().err


def test_a_bad_value_names_the_field(spec_file, capsys):
    assert main(["plan", "-e", spec_file, "--gpus", "two"]) == 1
    assert "train.num_gpus" in capsys.readouterr().err


def test_an_unknown_option_stays_an_error(spec_file, capsys):
    for option in ("--gpuz", "--amp", "-x"):
        with pytest.raises(SystemExit) as left:
            main(["distill", "-e", spec_file, option])
        assert left.value.code == 2 and option in capsys.readouterr().err


def test_taos_own_command(spec_file, tmp_path, capsys):
    """`radio distill -e SPEC -r DIR`, refused for the spec alone."""
    assert cli.radio(["distill", "-e", spec_file, "-r", str(tmp_path / "out"), "--gpus", "1"]) == 1
    assert "distill.teacher" in capsys.readouterr().err
