"""Each student has workers of its own, and all share one stream and the teachers' answers; a worker dies meanwhile."""

from __future__ import annotations

import os
import re
import signal
import threading
import time

import psutil
import pytest

from benchmarks.family import counting
from benchmarks.family_teacher import weights
from radioplat.spec.loading.load import load_spec
from radioplat.tracking.attempts.attempts import Attempts
from radioplat.training.accounting.prove import prove_run

pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]
STUDENTS = [
    {"name": "base"},
    {"name": "small", "img_size": 32, "model": {"backbone": {"kwargs": {"embed_dim": 24, "num_heads": 2}}}},
    {"name": "cnn", "model": {"backbone": {"type": "resnet10t", "kwargs": {}, "freeze_norm": True}}},
]
FILES = ("student.safetensors", "heads.safetensors", "optimizer.safetensors")
SAVED = {"checkpoint_interval": 2, "checkpoint_interval_unit": "step", "keep_last": 9}
STEPS, MICRO_BATCHES = 8, 3


@pytest.fixture(scope="module")
def counted(make_spec, tmp_path_factory):
    """counted(results_dir, changes) -> a spec whose first teacher counts its forwards."""
    name = "tf_efficientnet_lite0"
    path = str(weights(name, tmp_path_factory.mktemp("weights")))

    def make(results_dir, changes):
        spec = make_spec(results_dir, changes)
        spec["distill"]["teacher"][0] |= {
            "model": {"backbone": {"type": "benchmarks.family_teacher:Counted", "kwargs": {"name": name}}},
            "pretrained_teacher_model_path": path,
        }
        return spec

    return make


def test_it_equals_one_process(counted, make_spec, distil, tmp_path, ray_environment, monkeypatch):
    for name, value in ray_environment.items():
        monkeypatch.setenv(name, value)
    exact = {"reduction": "exact", "engine": "ddp"} | SAVED
    one = distil(counted(tmp_path / "one", {"train": exact, "distill": {"students": STUDENTS}}))
    killed: list[int] = []

    def kill() -> None:
        """Kill a training worker once the CNN has a checkpoint."""
        while not list((tmp_path / "spread" / "students" / "cnn" / "distill").glob("model_epoch_000_step_00002*")):
            time.sleep(0.02)
        for process in psutil.Process().children(recursive=True):
            if "TrainWorker" in " ".join(process.cmdline()):
                killed.append(process.pid)
                os.kill(process.pid, signal.SIGKILL)
                return

    threading.Thread(target=kill, daemon=True).start()
    changes = {
        "train": exact,
        "cluster": {"mode": "ray"},
        "distill": {"students": STUDENTS, "placement": "spread"},
    }
    with counting(tmp_path / "counts"):
        spread = distil(counted(tmp_path / "spread", changes))
    assert killed
    line = next(line for line in spread.lines if line.startswith("micro-batches: "))
    read, shared = (int(word) for word in re.findall(r"\d+", line))
    # The group that was killed reads the steps after its checkpoint again.
    assert shared >= STEPS * MICRO_BATCHES and read <= 2 * STEPS * MICRO_BATCHES, line
    rows = [line.split()[1] for line in (tmp_path / "counts").read_text().splitlines()]
    forwards = rows.count("2")  # of a micro-batch; loading a teacher takes forwards of one image
    assert STEPS * MICRO_BATCHES <= forwards <= STEPS * MICRO_BATCHES * 1.05, forwards
    folders = [tmp_path / "spread" / "students" / each["name"] / "distill" for each in STUDENTS]
    starts = [Attempts(folder).last for folder in folders]
    assert min(starts) == 1 and max(starts) > 1, starts  # one group alone restarted
    assert all(result.account is not None for result in spread.result.students.values())
    accounts = [spread.result.students[each["name"]].account.seconds for each in STUDENTS]
    waited = max(account["students"] for account, start in zip(accounts, starts, strict=True) if start == 1)
    assert waited > 1, accounts  # for the group that restarted
    for each in STUDENTS:
        ours, theirs = spread.result.students[each["name"]], one.result.students[each["name"]]
        for file in FILES:
            assert (ours.checkpoint / file).read_bytes() == (theirs.checkpoint / file).read_bytes(), (each, file)
        assert prove_run(ours.folder, load_spec(make_spec(tmp_path)).dataset).holds
