"""`pip install radioplat` without extras: what the core promises runs where no package of an extra is installed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence

import pytest
import yaml

from radioplat.common.imports import EXTRAS

# Also packages that only tests and the quickstart need. None in sys.modules: the import fails as without the package.
ABSENT = [module for modules in EXTRAS.values() for module in modules]
ABSENT += ["tensorrt", "tensorrt_rtx", "nixl", "skimage", "sklearn", "boto3", "moto"]
ABSENT += ["triton", "cuda", "pynvml"]  # PyTorch for CPUs brings none of them
ABSENT += ["cykooz_resizer"]  # it has no wheel for Linux on aarch64
PROGRAM = """
import importlib, json, sys
sys.modules |= dict.fromkeys(json.loads(sys.argv[1]))
for module in json.loads(sys.argv[3]):
    importlib.import_module(module)
from radioplat.cli.main import main
for command in json.loads(sys.argv[2]):
    print("ended with", main(command))
"""


def run(
    *commands: list[str], imports: Sequence[str] = (), absent: Sequence[str] = ABSENT
) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(absent), json.dumps(commands), json.dumps(imports)],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def spec_file(make_spec, tmp_path):
    """The spec of two teachers, in a file; two steps."""
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(make_spec(tmp_path / "results", {"train": {"max_steps": 2}})))
    return str(path)


def ends(done: subprocess.CompletedProcess) -> list[str]:
    """The exit status of each command."""
    assert "Traceback" not in done.stderr, done.stderr
    return [line.split()[-1] for line in done.stdout.splitlines() if line.startswith("ended with")]


def test_core_modules_import_and_missing_extras_are_named(spec_file):
    tasks = (
        "compress.compress",
        "evaluate.evaluate",
        "export.engine",
        "inference.inference",
        "prune.prune",
        "tune.tune",
    )
    e = ["-e", spec_file]
    done = run(
        ["plan", *e, "distill.then=[export]", "wandb.enable=true"],
        ["export", *e],
        ["lint", "student.onnx"],
        imports=[f"radioplat.tasks.{name}" for name in tasks],
    )
    assert ends(done) == ["1", "1", "1"], done.stdout + done.stderr
    text = " ".join(done.stderr.split())
    assert "wandb.enable: Weights & Biases needs the package wandb" in text and "'radioplat[wandb]'" in text
    assert "export.format: format onnx needs the package onnx" in text and "'radioplat[onnx]'" in text
    assert "2 problems" in text


def test_a_package_of_the_core_that_is_missing_is_named_with_its_command(spec_file):
    e = ["-e", spec_file]
    ray = "cluster.mode=ray"
    done = run(["plan", *e, ray], ["distill", *e], ["distill", *e, ray], absent=["deepspeed", "ray"])
    assert ends(done) == ["1"] * 3, done.stdout + done.stderr
    text = " ".join(done.stderr.split())
    for package, purpose in (("deepspeed", "train.engine: engine deepspeed"), ("ray", "cluster.mode: ")):
        assert purpose in text and f"needs the package {package}, which is not installed" in text
    assert re.search(r"run pip install 'deepspeed[<>=]", text) and re.search(r"run pip install 'ray\[", text)
    assert "defect" not in text


@pytest.mark.proof
@pytest.mark.timeout(900)
def test_the_core_distils_evaluates_prunes_quantizes_and_exports(spec_file, tmp_path):
    e = ["-e", spec_file]
    done = run(
        ["plan", *e],
        ["train", *e, "distill.teacher=[]", "dataset.num_classes=4"],
        ["distill", *e],
        ["evaluate", *e],
        ["prune", *e],
        ["quantize", *e, "quantize.calibration_batches=2"],
        *(["export", *e, f"export.format={name}"] for name in ("radio", "safetensors")),
    )
    assert ends(done) == ["0"] * 8, done.stdout + done.stderr
    results = tmp_path / "results"
    assert (results / "evaluate" / "report.html").exists() and len(list((results / "export").iterdir())) >= 3
