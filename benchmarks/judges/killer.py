"""Kill processes of a run at random. Imports nothing of the platform that it kills; knows processes by ``ps`` alone.

``python -m benchmarks.judges.killer --below PID [--spare PID ...] [--kills 40] [--seconds 480] [--seed 0] --log FILE``.
Among the descendants of a process it looks for training workers, teachers, readers of samples and raylets, by the
titles that Ray gives them. Again and again it waits a random time, and until a training worker has lived for
``--least`` seconds, chooses one of the kinds that are there, and one process of that kind, and sends it SIGKILL. Waits
are from half to one and a half of what is left of the seconds for each kill that is left. It ends after so many kills,
or when the process that is named first ends.

A line of JSON is appended to the log for each: time, kind, pid, title. Lines that are there already count. The last
line on stdout: ``kills`` and how many of each kind.
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
    parser.add_argument("--seconds", type=float, default=480.0, help="in which they should come")
    parser.add_argument("--least", type=float, default=3.0, help="seconds that a training worker must have lived")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", type=Path, required=True)
    given = parser.parse_args()
    before = [json.loads(line) for line in given.log.read_text().splitlines()] if given.log.exists() else []
    done = Counter(each["kind"] for each in before)
    chance = random.Random(given.seed * 1000 + done.total())
    begin, end = time.monotonic(), time.monotonic() + given.seconds * (1 - done.total() / max(1, given.kills))
    while done.total() < given.kills and alive(given.below):
        each = max(0.0, end - begin) / (given.kills - done.total())
        found = found_after(given.below, begin + chance.uniform(0.5, 1.5) * each, given.least, set(given.spare))
        if found is None:
            break
        kinds = sorted(found)
        kind = chance.choices(kinds, [WEIGHTS[name] for name in kinds])[0]
        pid, title = chance.choice(found[kind])
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
        done[kind] += 1
        begin = time.monotonic()
        with given.log.open("a") as log:
            log.write(json.dumps({"time": time.time(), "kind": kind, "pid": pid, "title": title}) + "\n")
    print(json.dumps({"kills": done.total(), **done}))


def found_after(below: int, until: float, least: float, spared: set[int]) -> dict[str, list[tuple[int, str]]] | None:
    """Wait until a time, and until a training worker has lived long enough; return the processes of each kind.

    Args:
        until: by the monotonic clock.
        least: seconds.

    Returns:
        None if the process that is above all of them has ended.
    """
    seen: dict[int, float] = {}  # training workers, and since when they are known
    while alive(below):
        found: dict[str, list[tuple[int, str]]] = {}
        for pid, kind, title in processes(below):
            if pid not in spared:
                found.setdefault(kind, []).append((pid, title))
        now = time.monotonic()
        seen = {pid: seen.get(pid, now) for pid, _ in found.get("worker", [])}
        if now >= until and any(now - since >= least for since in seen.values()):
            return found
        time.sleep(0.25)
    return None


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
