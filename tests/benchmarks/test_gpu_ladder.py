"""The ladder of ``benchmarks.gpu`` on a CPU: its code and its keys; the figures say nothing of a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import timm

pytestmark = pytest.mark.timeout(2400)  # processes that import torch, on a machine that may be busy
ROOT = Path(__file__).parents[2]
# What a bare image with a GPU lacks of our dependencies.
MISSING = ("ray", "deepspeed", "webdataset", "omegaconf", "simplejpeg", "cykooz", "torch_pruning", "wandb", "optuna")
SPEED = {"images_per_s", "spread", "step_ms", "mfu", "tflops_per_gpu"}
ON_GPUS = {"idle_share", "busy_student", "busy_teachers", "overlap", "launches_per_micro_batch"}


def climb(tmp_path: Path, *arguments: str, bare: bool = False) -> dict[str, Any]:
    """Run the command; return its JSON, which the file and the last line have alike."""
    out, path = tmp_path / "out.json", [str(ROOT)]
    if bare:
        path.append(str(bare_packages(tmp_path / "site")))
    command = [sys.executable, *(["-S"] if bare else []), "-m", "benchmarks.gpu", "--cpu", "--eager", "--batch", "2"]
    command += ["--limit", "2000"]  # a test waits for a hang alone
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(path)}
    done = subprocess.run(
        [*command, "--out", str(out), *arguments], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    last = json.loads(done.stdout.splitlines()[-1])
    assert last == json.loads(out.read_text())
    return last["rungs"]


def bare_packages(folder: Path) -> Path:
    """A folder with links to all installed packages except :data:`MISSING`."""
    folder.mkdir()
    for path in Path(timm.__file__).parents[1].iterdir():
        if not path.name.startswith((*MISSING, "__editable__", "radioplat")) and path.suffix != ".pth":
            (folder / path.name).symlink_to(path)
    return folder


def check_rung(rung: dict[str, Any]) -> None:
    """Both sides have all figures, and those of GPUs are null."""
    for side in ("ours", "by_hand"):
        assert rung[side].keys() == SPEED, rung
        assert rung[side]["images_per_s"] > 0 and rung[side]["mfu"] is None
    assert rung["ratio"]["spread"][0] <= rung["ratio"]["median"] <= rung["ratio"]["spread"][1]


@pytest.mark.proof  # a minute and a half
def test_two_ranks_climb_to_the_engine_with_torch_and_timm_alone(tmp_path):
    names = ("student", "losses", "ddp", "zero2", "inline")
    rungs = climb(tmp_path, "--gpus", "2", "--seconds", "1", "--only", *names, bare=True)
    for name in ("student", "losses", "ddp"):
        check_rung(rungs[name])
    assert rungs["ddp"].keys() >= {*ON_GPUS, "parts_ms", "host_syncs_per_micro_batch", "peak_memory_bytes_of_both"}
    assert rungs["ddp"]["idle_share"] is None and rungs["ddp"]["parts_ms"].keys() == {"forward", "backward", "update"}
    assert rungs["zero2"]["unmeasured"] == "deepspeed is not installed"
    assert rungs["inline"]["unmeasured"].endswith("is not installed")
    assert rungs["stalls"] == {"unmeasured": "not asked for"}
    device = rungs["device"]
    assert device["gemm_bf16_tflops"] > 0 and device["all_reduce_busbw_gb_s"] > 0 and device["h2d_pinned_gb_s"] is None
    assert device["gflop"]["student"] < rungs["losses"]["gflop_per_image"]


@pytest.mark.proof
def test_the_training_loop_takes_turns_with_the_loop_by_hand(tmp_path):
    rungs = climb(tmp_path, "--seconds", "1", "--only", "inline")
    check_rung(rungs["inline"])
    found = rungs["inline"]
    assert found.keys() >= {*ON_GPUS, "waited_for_data", "waited_for_teachers", "host_syncs_per_micro_batch"}
    assert found["teacher_seconds_over_step"].keys() == {"tiny_a", "tiny_b"}
    flop = rungs["device"]["gflop"]
    assert found["gflop_per_image"] == flop["student"] + flop["heads"] + sum(flop["teachers"].values())


def test_the_loop_by_hand_imports_nothing_of_radioplat():
    code = "import sys, benchmarks.gpu.loop; print([m for m in sys.modules if m.split('.')[0] == 'radioplat'])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
