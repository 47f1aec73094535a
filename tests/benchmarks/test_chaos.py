"""Short runs of the chaos suite hold, and it notices what does not."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from written_ledger import write

from benchmarks.chaos import trial as module
from benchmarks.chaos.process import Faults
from benchmarks.chaos.trial import Quiet, Trial
from radioplat.data.ledger.ledger import Ledger

ROOT = Path(__file__).parents[2]
ZEROS = {"unlearned_unreported": 0, "tracebacks": 0, "hangs": 0, "memory_over": 0}


def chaos(folder: Path, *arguments: str, seconds: float) -> dict:
    """What a run of it prints last; its exit status must be 0."""
    command = [sys.executable, "-m", "benchmarks.chaos", *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=seconds)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


needs_compiler = pytest.mark.skipif(not (shutil.which("cc") or shutil.which("gcc")), reason="no C compiler")


@needs_compiler
@pytest.mark.proof
@pytest.mark.timeout(400)
@pytest.mark.parametrize("kinds", [["kill"], ["kill", "torn_lines", "lost_folder"]], ids=len)
def test_a_short_run_holds(tmp_path, kinds):
    result = chaos(tmp_path, "--seed", "7", "--trials", str(len(kinds)), "--only", *kinds, seconds=400)
    assert result["held"] == result["bit_equal"] == result["trials"] == len(kinds)
    assert ZEROS.items() <= result.items()


@needs_compiler
@pytest.mark.proof
@pytest.mark.timeout(2400)
def test_every_kind_holds(tmp_path):
    kinds = "kill kill_at_a_time two_writers clock torn_lines outage outage_at_a_start lost_folder".split()
    kinds += ["full_disk"] if os.geteuid() == 0 else []
    arguments = ("--seed", "11", "--trials", str(2 * len(kinds)), "--seconds", "1200", "--only", *kinds)
    result = chaos(tmp_path, *arguments, seconds=2000)
    assert result["held"] == result["bit_equal"] == result["trials"] >= len(kinds)
    assert ZEROS.items() <= result.items()


@needs_compiler
@pytest.mark.proof
@pytest.mark.ray
@pytest.mark.timeout(1200)
def test_a_cluster_holds(tmp_path):
    result = chaos(tmp_path, "--seed", "11", "--trials", "2", "--only", "cluster", seconds=1100)
    assert result["held"] == result["bit_equal"] == 2 and ZEROS.items() <= result.items()


@needs_compiler
@pytest.mark.proof
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("ip"), reason="needs root and iproute2")
@pytest.mark.timeout(1200)
def test_two_hosts_hold(tmp_path):
    result = chaos(tmp_path, "--seed", "11", "--trials", "2", "--hosts", "2", seconds=1100)
    assert result["held"] == result["bit_equal"] == 2 and ZEROS.items() <= result.items()


@pytest.fixture
def made(tmp_path, monkeypatch) -> Trial:
    """A trial whose run has left a ledger of two steps, a line and no checkpoint."""
    monkeypatch.setattr(module, "STEPS", 2)
    monkeypatch.setattr(module, "BATCH", 6)
    trial = Trial(tmp_path / "trial", tmp_path / "inputs", random.Random(0))
    write(trial.run / "ledger", 1, range(2), world=2)
    (trial.run / "status.json").write_text('{"status": "SUCCESS"}\n')
    return trial


def test_what_is_missing_or_repeated_is_a_problem(made):
    (problem,) = made.judge(Quiet("", 0, 0))["problems"]
    assert problem.startswith("FileNotFoundError") and "student.safetensors" in problem, "the ledger alone is whole"
    path = sorted((made.run / "ledger").glob("*.parquet"))[0]
    rows = pq.read_table(path)
    path.unlink()
    made.problems.clear()
    assert f"'missing': {len(rows)}" in made.judge(Quiet("", 0, 0))["problems"][0]
    for name in ("a", "b"):
        pq.write_table(rows, path.with_name(f"consumed-a0001-r00000-{name}.parquet"))
    made.problems.clear()
    assert f"'repeated': {len(rows)}" in made.judge(Quiet("", 0, 0))["problems"][0]


def test_samples_without_weight_must_be_reported(made):
    book = Ledger(made.run / "ledger", 0, 1)
    book.rejected(1, 0, [6, 7], [1, 2], ["short_read: none", "short_read: none"])
    book.flush()
    assert made.judge(Quiet("", 0, 0))["unlearned_unreported"] == 2
    (made.run / "status.json").write_text('{"message": "2 bad samples"}\n{"status": "SUCCESS"}\n')
    made.counts.clear()
    assert made.judge(Quiet("", 0, 0))["unlearned_unreported"] == 0


def test_a_moved_clock_and_a_kill(tmp_path):
    """The library does both to a program of ours that imports nothing of radioplat."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    library = tmp_path / "faults.so"
    source = ROOT / "benchmarks" / "chaos" / "faults.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    faults = Faults(tmp_path / "switch", tmp_path / "here")
    faults.shift_clock(-3600.5)
    faults.kill_at(3)
    program = "import os, sys, time; print(time.time(), flush=True); [os.mkdir(p) for p in sys.argv[1:]]"
    folders = [tmp_path / "other", *(tmp_path / f"here{n}" for n in range(4))]
    environment = os.environ | faults.environment | {"LD_PRELOAD": str(library)}
    before = time.time()
    done = subprocess.run([sys.executable, "-c", program, *folders], env=environment, capture_output=True, text=True)
    assert done.returncode == -9 and abs(float(done.stdout) - before + 3600.5) < 60
    assert [folder.exists() for folder in folders] == [True, True, True, False, False]
