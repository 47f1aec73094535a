"""The demonstration: its short form, its killer, and its recording."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import xml.etree.ElementTree

import pytest
from rich.panel import Panel

from benchmarks.demonstration.progress import Kill, cost_of_kills
from benchmarks.demonstration.screen import animate


@pytest.mark.ray
@pytest.mark.proof
@pytest.mark.timeout(900)
def test_six_kills_and_two_students(tmp_path):
    command = [sys.executable, "-m", "benchmarks.demo", "--folder", str(tmp_path)]
    command += ["--kills", "6", "--seconds", "60", "--students", "2", "--steps", "24"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["hashes_equal"] == 1.0 and found["blows"] == 6
    assert found["missing"] == found["repeated"] == 0
    assert (
        found["teacher_forwards_per_sample"] == pytest.approx(1.0, abs=0.02) and found["teacher_forwards_again"] < 0.5
    )
    assert all((tmp_path / name).stat().st_size > 10_000 for name in ("demo.html", "demo.svg", "demo.png"))


def test_the_killer_kills_what_it_is_told_and_spares_the_rest(tmp_path):
    """Processes with the titles that Ray gives: a worker and a raylet that is spared; another's worker is not below."""
    sleeper = ["-c", "import time; time.sleep(120)"]
    started = [["RayTrainWorker", *sleeper], ["raylet/raylet", *sleeper]]
    code = (
        "import subprocess, sys, time\n"
        f"ps = [subprocess.Popen(each, executable=sys.executable) for each in {started!r}]\n"
        "print(*[p.pid for p in ps], flush=True); ps[0].wait(); time.sleep(120)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    other = subprocess.Popen(["RayTrainWorker", *sleeper], executable=sys.executable)
    try:
        assert parent.stdout is not None
        worker, raylet = map(int, parent.stdout.readline().split())
        command = [sys.executable, "-m", "benchmarks.judges.killer", "--below", str(parent.pid), "--spare", str(raylet)]
        command += ["--kills", "1", "--seconds", "0", "--least", "0.5", "--log", str(tmp_path / "log")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert json.loads(done.stdout) == {"kills": 1, "worker": 1}
        assert [json.loads(line)["pid"] for line in (tmp_path / "log").read_text().splitlines()] == [worker]
        again = subprocess.run(command, capture_output=True, text=True, timeout=60)  # the log has as many as it wants
        assert json.loads(again.stdout) == {"kills": 1, "worker": 1}
        assert other.poll() is None and subprocess.run(["kill", "-0", str(raylet)]).returncode == 0
        subprocess.run(["kill", "-9", str(raylet)])
    finally:
        for process in (parent, other):
            process.kill()
            process.wait()


def test_a_kill_costs_the_seconds_until_the_next_step(tmp_path):
    folder = tmp_path / "disturbed" / "distill"
    folder.mkdir(parents=True)
    begin = time.time()
    steps = [(1, 10.0), (2, 12.0), (3, 14.0), (2, 30.0), (3, 32.0), (4, 35.0)]  # killed at 15, steps 2 and 3 again
    lines = [{"event": "steps", "time": begin + at, "step": step, "attempt": 1} for step, at in steps]
    (folder / "accounts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    kills = [Kill(begin + 15.0, "worker", 1, ""), Kill(begin + 40.0, "worker", 2, "")]
    ((kill, step, seconds),) = cost_of_kills(tmp_path, kills)
    assert (kill, step) == (kills[0], 4) and seconds == pytest.approx(20.0, abs=1e-3)


def test_the_recording_is_one_picture_of_all_frames(tmp_path):
    path = animate(tmp_path / "demo.svg", [Panel(f"frame {number}") for number in range(3)])
    text = path.read_text()
    xml.etree.ElementTree.fromstring(text)
    assert all(f"frame&#160;{number}" in text for number in range(3))
