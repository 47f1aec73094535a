"""The fuzzer finds what it looks for, and a short run of it holds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import fuzz

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("trials", [20, pytest.param(200, marks=pytest.mark.proof)])
def test_a_short_run_holds(tmp_path, trials):
    command = [sys.executable, "-m", "benchmarks.fuzz", "--seconds", "400", "--trials", str(trials), "--seed", "5"]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 0, done.stdout + done.stderr
    assert found["held"] == found["trials"] == trials * len(fuzz.KINDS)
    assert not list((tmp_path / "results/fuzz").iterdir())


# In a small process of its own: the memory of a worker of pytest may shrink for other reasons meanwhile.
READERS = """
import sys
from pathlib import Path
from types import SimpleNamespace

from benchmarks import fuzz


def fail(data):
    raise ZeroDivisionError("not an answer")


read = {"answer": len, "fail": fail, "grow": lambda data: bytearray(data * 2**20)}[sys.argv[1]]
kept = Path(sys.argv[2])
kept.write_bytes(b"x" * 64)
print(fuzz._outcome(SimpleNamespace(read=read, limit=32 * fuzz.MIB), b"x" * 64, kept))
"""


@pytest.mark.parametrize(
    ("reader", "outcome", "said"),
    [("answer", "held", None), ("fail", "tracebacks", "not an answer"), ("grow", "memory_over", "MiB of 32")],
)
def test_what_a_reader_does(tmp_path, reader, outcome, said):
    kept = tmp_path / "input"
    command = [sys.executable, "-c", READERS, reader, str(kept)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == outcome
    assert kept.exists() == (outcome != "held")
    assert said is None or said in kept.with_suffix(".txt").read_text()


def test_the_memory_of_a_child_counts(tmp_path):
    """The 64 MiB of a process that the reader uses, and that lives before the trial as after it."""
    code = "import sys\nfor line in sys.stdin: x = b'x' * (int(line) << 20); del x; print(flush=True)"
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1, text=True) as child:

        def read(data: bytes) -> None:
            print(data.decode(), file=child.stdin, flush=True)
            child.stdout.readline()

        read(b"1")
        reader = SimpleNamespace(read=read, limit=32 * fuzz.MIB)
        for size, outcome in ((b"16", "held"), (b"64", "memory_over")):
            (tmp_path / "input").touch()
            assert fuzz._outcome(reader, size, tmp_path / "input") == outcome
        child.stdin.close()


ENDED = """
import subprocess, sys
from pathlib import Path
from types import SimpleNamespace
from benchmarks import fuzz

code = "x = b'x' * (100 << 20); print(flush=True); input()"
with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1, text=True) as child:
    child.stdout.readline()

    def read(data):
        child.communicate("\\n")
        bytearray(data * 2**20)

    print(fuzz._outcome(SimpleNamespace(read=read, limit=32 * fuzz.MIB), b"x" * 64, Path(sys.argv[1])))
"""


def test_a_child_that_ends_hides_no_memory(tmp_path):
    """Its 100 MiB are none that the reader gave back. In a small process, from which the system takes no idle pages."""
    (tmp_path / "input").touch()
    command = [sys.executable, "-c", ENDED, str(tmp_path / "input")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "memory_over", done.stderr


@pytest.mark.parametrize(("end", "outcome"), [("time.sleep(60)", "hangs"), ("os._exit(9)", "tracebacks")])
def test_a_process_that_hangs_or_dies_is_replaced_behind_its_trial(monkeypatch, end, outcome):
    code = (
        "import os, sys, time\nprint('ready', flush=True)\n"
        f"for i in range(int(sys.argv[-1]), 10**9):\n    if i == 3: {end}\n"
        "    time.sleep(0.01); print('held', flush=True)"
    )
    monkeypatch.setattr(fuzz, "HANG_S", 0.5)
    found = fuzz.attack("images", 0, 1.5, program=(sys.executable, "-c", code))
    assert found[outcome] == 1 and found["held"] == found["trials"] - 1 > 10
