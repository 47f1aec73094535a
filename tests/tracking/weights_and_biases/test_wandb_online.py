"""Online, against a server on loopback: what arrives there, and what its silence costs a training."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from radioplat.spec.schema.wandb import WandbConfig
from radioplat.tracking.weights_and_biases.artifacts import Product
from radioplat.tracking.weights_and_biases.session import WandbRun

sys.path.insert(0, str(Path(__file__).parent))
from wandb_server import WandbServer

ROOT = Path(__file__).parents[3]
KEY = "0123456789abcdef0123456789abcdef01234567"
# A training of 40 steps of 10 ms each; says how long it, the start and the end took.
TRAINING = """
import sys, time
from pathlib import Path
from radioplat.spec.schema.wandb import WandbConfig
from radioplat.tracking.weights_and_biases.session import WandbRun
home, word = Path(sys.argv[1]), sys.argv[2]
begin = time.monotonic()
names = {"group": "sweep-1", "name": "trial_0001", "tags": ["t"]}
config = WandbConfig(enable=True, mode="online", finish_s=float(sys.argv[3]), **names)
run = WandbRun(config, home, {"train": {"lr": 0.5}}, job_type="distill")
started = time.monotonic()
if word == "later":  # the server falls silent or goes only now
    assert run.dir is not None
    Path(home / "ready").touch()
    while not (home / "go").exists():
        time.sleep(0.01)
begin_steps = time.monotonic()
for step in range(40):
    time.sleep(0.01)
    run.log(step, {"loss": 1 / (step + 1)})
steps = time.monotonic()
run.finish()
print(started - begin, steps - begin_steps, time.monotonic() - steps, flush=True)
"""


@pytest.fixture
def server():
    server = WandbServer()
    yield server
    server.close()


def environment_of(server, tmp_path):
    return {k: v for k, v in os.environ.items() if not k.startswith("WANDB")} | {
        "WANDB_API_KEY": KEY,
        "WANDB_BASE_URL": server.url,
        "NETRC": str(tmp_path / "netrc"),
        "PYTHONPATH": str(ROOT),
        **{name: str(tmp_path / name) for name in ("WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR")},
    }


def training(server, tmp_path, word, finish_s=4):
    environment = environment_of(server, tmp_path)
    command = [sys.executable, "-c", TRAINING, str(tmp_path), word, str(finish_s)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process):
    """Seconds of start, steps and end, and of the process's own end; and what was said."""
    out = process.stdout.readline()
    begin = time.monotonic()
    _, said = process.communicate(timeout=40)
    assert process.returncode == 0, said
    return [*map(float, out.split()), time.monotonic() - begin], said


def test_what_arrives(server, tmp_path):
    seconds, said = ended(training(server, tmp_path, "now", 30))
    ((name, run),) = server.runs.items()
    assert (run["groupName"], run["displayName"], run["jobType"]) == ("sweep-1", "trial_0001", "distill")
    assert run["tags"] == ["t"] and '"lr"' in run["config"]
    rows = [(row["global_step"], row["loss"]) for row in server.rows[name]]
    assert rows == [(step, 1 / (step + 1)) for step in range(40)]
    assert "the server does not" not in said and KEY not in said
    assert (tmp_path / "wandb_run_id").read_text().strip() == name


def test_parts_that_were_kept_offline_are_joined(server, tmp_path):
    """Two starts of a run, the second from an earlier checkpoint; then what it made and of what."""
    student = tmp_path / "model"
    student.mkdir()
    (student / "student.safetensors").write_bytes(b"weights")
    config = WandbConfig(enable=True, mode="offline")
    for steps in ((1, 2, 3), (2, 3)):
        with WandbRun(config, tmp_path) as run:
            for step in steps:
                run.log(step, {"loss": 1 / step})
            run.used(Product(student, "checkpoint"))
        time.sleep(1.1)  # W&B names the folder by the second
    parts = sorted(str(path) for path in tmp_path.glob("wandb/offline-run-*"))
    command = [str(Path(sys.executable).with_name("wandb")), "sync", *parts]
    subprocess.run(
        command, env=environment_of(server, tmp_path), check=True, timeout=60, capture_output=True, cwd=tmp_path
    )
    rows = [(row["global_step"], row["loss"]) for row in server.rows[run.id]]
    assert rows == [(1, 1.0), (2, 1 / 2), (3, 1 / 3), (2, 1 / 2), (3, 1 / 3)]
    used = [values["input"]["artifactID"] for text, values in server.asked if "useArtifact(" in text]
    assert len(used) == 2 and len(set(used)) == 1


@pytest.mark.parametrize(
    ("how", "word"),
    [
        ("silent", "now"),
        ("silent", "later"),
        pytest.param("gone", "now", marks=pytest.mark.proof),
        pytest.param("gone", "later", marks=pytest.mark.proof),
    ],
)
def test_an_outage_costs_a_training_nothing(server, tmp_path, word, how):
    """``now``: before it starts; ``later``: while it trains."""
    outage = server.fall_silent if how == "silent" else server.close
    if word == "now":
        outage()
    process = training(server, tmp_path, word)
    if word == "later":
        until = time.monotonic() + 30
        while not (tmp_path / "ready").exists():
            assert time.monotonic() < until and process.poll() is None
            time.sleep(0.01)
        outage()
        (tmp_path / "go").touch()
    (start, steps, end, exit_), said = ended(process)
    assert start < 1 and steps < 40 * 0.01 + 1
    assert end < 4 + 1 and exit_ < 4 + 3
    kept = [*(tmp_path / "wandb").glob("*run-*/*.wandb")]
    assert "wandb:" in said and kept
