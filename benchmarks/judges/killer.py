"""Kill processes of a run at random. Imports nothing of the platform that it kills; knows processes by ``ps`` alone.

``python -m benchmarks.judges.killer --below PID [--spare PID ...] [--kills 40] [--seed 0] [--gap 8 16] --log FILE``.
Among the descendants of a process it looks for training workers, teachers, readers of samples and raylets, by the
titles that Ray gives them. Again and again it waits a random time, in which a training worker must have lived for the
shorter part, chooses one of the kinds that are there, and one process of that kind, and sends it SIGKILL. It ends after
so many kills, or when the process that is named first ends.

A line of JSON is appended to the log for each: time, kind, pid, title. The last line on stdout: ``kills`` and how many
of each kind.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

TITLES = {"worker": "RayTrainWorker", "teacher": "ray::Replica", "reader": "_ReadSpan", "raylet": "raylet/raylet"}
WEIGHTS = {"worker": 4, "teacher": 2, "reader": 2, "raylet": 2}


def main() -> None:
    """Kill and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--below", type=int, required=True)
    parser.add_argument("--spare", type=int, nargs="*", default=[])
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--gap", type=float, nargs=2, default=[8.0, 16.0], metavar=("LEAST", "MOST"), help="seconds")
    parser.add_argument("--log", type=Path, required=True)
    given = parser.parse_args()
    chance, done = random.Random(given.seed), Counter[str]()
    while sum(done.values()) < given.kills and alive(given.below):
        if not waits(given.below, given.gap[0]):
            continue
        time.sleep(chance.uniform(0, given.gap[1] - given.gap[0]))
        found: dict[str, list[tuple[int, str]]] = {}
        for pid, kind, title in processes(given.below):
            if pid not in given.spare:
                found.setdefault(kind, []).append((pid, title))
        if "worker" not in found:
            continue
        kinds = sorted(found)
        kind = chance.choices(kinds, [WEIGHTS[name] for name in kinds])[0]
        pid, title = chance.choice(found[kind])
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
        done[kind] += 1
        with given.log.open("a") as log:
            log.write(json.dumps({"time": time.time(), "kind": kind, "pid": pid, "title": title}) + "\n")
    print(json.dumps({"kills": sum(done.values()), **done}))


def waits(below: int, seconds: float) -> bool:
    """Wait until a training worker has lived for so many seconds; return False if it ended."""
    begin = time.monotonic()
    first = {pid for pid, kind, _ in processes(below) if kind == "worker"}
    while time.monotonic() - begin < seconds:
        time.sleep(0.25)
        if not alive(below) or not first & {pid for pid, kind, _ in processes(below) if kind == "worker"}:
            return False
    return True


def alive(pid: int) -> bool:
    """Return whether a process exists."""
    return Path(f"/proc/{pid}").exists()


def processes(below: int) -> Iterator[tuple[int, str, str]]:
    """Yield process id, kind and title of the descendants of a process that are of a known kind."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], check=True, capture_output=True, text=True).stdout
    parents, titles = {}, {}
    for line in listed.splitlines():
        pid, parent, *rest = line.split(None, 2)
        parents[int(pid)], titles[int(pid)] = int(parent), rest[0] if rest else ""
    for pid, title in titles.items():
        kind = next((name for name, part in TITLES.items() if part in title.partition(" --")[0]), None)
        above = pid
        while kind is not None and above in parents and above != below:
            above = parents[above]
        if kind is not None and above == below and pid != below:
            yield pid, kind, title[:80]


if __name__ == "__main__":
    main()
