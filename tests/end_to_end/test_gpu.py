"""The same run on a GPU: other placement, same code."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys

import pytest
import torch

import radioplat
from radioplat.spec.loading.load import load_spec
from radioplat.spec.schema.train import Precision
from radioplat.tracking.status import read_status

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.timeout(600),
]


ON_CPU = """
import json, sys, radioplat
spec, overrides = json.loads(sys.stdin.read())
radioplat.distill(spec, overrides)
"""


@pytest.mark.parametrize("mode", ["local", "ray"])
def test_a_run_on_one_gpu_gives_the_cpu_losses(make_spec, tmp_path, mode):
    """fp32 without TF32: the first step within 1e-4 of the CPU's, and every loss finite."""
    spec = make_spec(tmp_path, {"train": {"tf32": False}})
    for service in spec["teachers"].values():
        service["precision"] = "fp32"  # by default a teacher computes in bf16 where the device multiplies it
    # With Ray the worker has the GPU; the teachers compute on it, too.
    shared = [f"teachers.{name}.placement=inline" for name in ("lite0", "vit")] if mode == "ray" else []
    radioplat.distill(spec, [f"results_dir={tmp_path / 'cuda'}", f"cluster.mode={mode}", *shared])
    # DeepSpeed chooses a process's device once, so the CPU has a process of its own.
    given = json.dumps([spec, [f"results_dir={tmp_path / 'cpu'}", "cluster.mode=local"]])
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run([sys.executable, "-c", ON_CPU], input=given, text=True, env=hidden, check=True, timeout=300)
    losses = {}
    for device in ("cuda", "cpu"):
        lines = read_status(tmp_path / device / "distill" / "status.json")
        losses[device] = [line["kpi"]["loss"] for line in lines if "max_step" in line]
    assert all(math.isfinite(loss) for loss in losses["cuda"])
    assert losses["cuda"][0] == pytest.approx(losses["cpu"][0], rel=1e-4)


@pytest.mark.parametrize("offload", [False, True])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_every_stage_and_precision_trains_on_a_gpu(make_spec, tmp_path, precision, stage, offload):
    """The first loss is fp32's; with LAMB, whose norms go between ranks, and an average; then it goes on from there."""
    if offload and not stage:
        pytest.skip("refused")
    train = {"precision": precision, "zero_stage": stage, "offload": offload, "enable_ema": True, "max_steps": 3}
    spec = make_spec(tmp_path, {"train": {**train, "optim": {"optim": "lamb", "lr": 1e-3}}})
    plain = radioplat.distill(make_spec(tmp_path / "plain"), ["train.max_steps=1", "train.precision=fp32"])
    losses = {}
    for steps in (3, 5):
        result = radioplat.distill(spec, [f"train.max_steps={steps}"])
        for line in read_status(result.folder / "status.json"):
            if "max_step" in line:
                losses[line["step"]] = line["kpi"]["loss"]
    assert result.resumed_from == 3 and sorted(losses) == [1, 2, 3, 4, 5]
    assert all(math.isfinite(loss) for loss in losses.values())
    (first,) = [line["kpi"]["loss"] for line in read_status(plain.folder / "status.json") if "max_step" in line]
    assert losses[1] == pytest.approx(first, rel=1e-4 if precision == "fp32" else 2e-2)


def test_a_run_that_names_no_precision_multiplies_bf16(make_spec, tmp_path):
    """On a GPU that can; the run's own spec says so, and the next start keeps it."""
    if torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("needs a GPU that multiplies bf16")
    spec = make_spec(tmp_path)
    del spec["train"]["precision"]
    result = radioplat.distill(spec, ["train.max_steps=1", "cluster.mode=local"])
    written = load_spec(result.folder / "experiment.yaml").train
    assert written.precision is Precision.bf16 and written.tf32 is True
    assert torch.get_float32_matmul_precision() == "high" and torch.backends.cudnn.allow_tf32
