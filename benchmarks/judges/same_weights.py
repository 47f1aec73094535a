"""Do weights depend on the number of workers? Imports nothing of the platform that it judges.

``python -m benchmarks.judges.same_weights SPEC.json FOLDER STEPS [--undisturbed]``: starts ``radioplat distill`` by its
command line several times, each on a Ray cluster of its own on this machine, with the spec's settings and results in a
folder of its own: with one worker; with two; with three, of which one is killed (SIGKILL) at a third of the way, and
which at half of the way are asked to stop (SIGTERM) and go on as two (not with ``--undisturbed``). Each run must take
STEPS optimizer steps.

The last line on stdout is one JSON object: for each run the SHA-256 of ``student.safetensors`` of its last checkpoint,
whether all are ``equal``, and what was done to the third run.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PATIENCE_S = 600.0  # without a new step


def main() -> None:
    """Run, compare and print."""
    spec = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    folder, steps = Path(sys.argv[2]), int(sys.argv[3])
    hashes = {f"{count} worker(s)": hash_of(run(spec, folder / str(count), count)) for count in (1, 2)}
    events: list[str] = []
    if "--undisturbed" not in sys.argv:
        events = blows(spec, folder / "3", steps)
        hashes["3 workers, disturbed"] = hash_of(folder / "3")
    print(json.dumps({"equal": len(set(hashes.values())) == 1, "hashes": hashes, "events": events}))


def blows(spec: dict[str, Any], home: Path, steps: int) -> list[str]:
    """Train with three workers, kill one, stop the others, and go on with two; return what happened."""
    events, process = [], start(spec, home, 3)
    await_step(process, home, steps // 3)
    victims = workers()
    os.kill(victims[-1], signal.SIGKILL)
    events.append(f"step {newest_step(home)}: killed one of {len(victims)} workers")
    await_step(process, home, steps // 2)
    process.send_signal(signal.SIGTERM)
    process.wait(PATIENCE_S)
    events.append(f"step {newest_step(home)}: stopped by SIGTERM, exit status {process.returncode}")
    run(spec, home, 2)
    events.append(f"step {newest_step(home)}: ended with two workers")
    return events


def start(spec: dict[str, Any], home: Path, workers: int) -> subprocess.Popen[bytes]:
    """Start a run with this number of workers."""
    home.mkdir(parents=True, exist_ok=True)
    mine = copy.deepcopy(spec)
    mine["results_dir"] = str(home)
    mine["train"] |= {"num_gpus": workers, "min_workers": min(workers, 2), "max_workers": workers}
    mine["cluster"] = {**mine.get("cluster", {}), "mode": "ray"}
    path = home / "spec.json"
    path.write_text(json.dumps(mine), encoding="utf-8")
    command = [sys.executable, "-m", "radioplat.cli", "distill", "-e", str(path)]
    with (home / "output.txt").open("ab") as output:
        return subprocess.Popen(command, stdout=output, stderr=output)


def run(spec: dict[str, Any], home: Path, workers: int) -> Path:
    """Start a run and wait for its end; return its folder."""
    process = start(spec, home, workers)
    await_step(process, home, None)
    if process.returncode:
        sys.exit(f"{home}: exit status {process.returncode}; see output.txt there")
    return home


def await_step(process: subprocess.Popen[bytes], home: Path, step: int | None) -> None:
    """Wait until a run has taken ``step`` steps; None: until its end."""
    last, since = -1, time.monotonic()
    while process.poll() is None:
        now = newest_step(home)
        if step is not None and now >= step:
            return
        if now != last:
            last, since = now, time.monotonic()
        if time.monotonic() - since > PATIENCE_S:
            process.kill()
            sys.exit(f"{home}: no new step after step {now}")
        time.sleep(0.1)
    if step is not None:
        sys.exit(f"{home}: ended before step {step} with exit status {process.returncode}; see output.txt there")


def newest_step(home: Path) -> int:
    """Return the number of steps that the run has reported so far."""
    path = home / "distill" / "status.json"
    if not path.exists():
        return 0
    messages = [
        json.loads(line)["message"] for line in path.read_text(encoding="utf-8").splitlines() if "step " in line
    ]
    return max((int(text.split()[1]) for text in messages if text.startswith("step ") and " of " in text), default=0)


def workers() -> list[int]:
    """Return the training workers of Ray on this machine, which has one cluster."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
        except OSError:
            continue
        if b"RayTrainWorker" in command:
            found.append(int(entry.name))
    return sorted(found)


def hash_of(home: Path) -> str:
    """Return the SHA-256 of the student's weights in the newest checkpoint."""
    newest = max((home / "distill").glob("model_epoch_*"), key=lambda path: path.name)
    return hashlib.sha256((newest / "student.safetensors").read_bytes()).hexdigest()


if __name__ == "__main__":
    main()
