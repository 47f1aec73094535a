"""Which nodes of a pipeline ran in which start of its command, and did a finished one run again?

Imports nothing of the platform that it judges; reads ``pipeline.json`` of a results folder, and what the nodes' tasks
leave in their own folders: ``status.json`` and the files of their products.

``python -m benchmarks.judges.pipeline RESULTS_DIR``. Last line: ``ran`` (the nodes by the number of the start, from the
lines of their ``status.json`` between the beginning of that start and that of the next), ``finished`` (the nodes of
which ``pipeline.json`` says so), ``reran`` (nodes that began again after their SUCCESS, in a later start),
``dag_nodes_rerun_after_kill`` (their number), ``record_agrees`` (whether ``pipeline.json`` has every start of each node
that these lines are of), ``products_unchanged`` (share of the recorded files of finished nodes with the recorded
sha256).
"""

from __future__ import annotations

import argparse
import hashlib
import json
from datetime import datetime
from pathlib import Path
from typing import Any


def main() -> None:
    """Read a folder and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path)
    print(json.dumps(judged(parser.parse_args().results)))


def judged(results: Path) -> dict[str, Any]:
    """All figures of one pipeline."""
    record = json.loads((results / "pipeline.json").read_text())
    begins = [start["began"] for start in record["starts"]]
    ran: dict[int, list[str]] = {number: [] for number in range(1, len(begins) + 1)}
    reran, agrees = [], True
    for node in record["nodes"]:
        logs = [lines_of(path) for path in sorted((results / node["name"]).rglob("status.json"))]
        starts = {start_of(when, begins) for log in logs for when, _ in log}
        for number in sorted(starts):
            ran[number].append(node["name"])
        agrees &= starts <= set(node["starts"])  # one that was killed at once left no line
        if any(began_again(log, begins) for log in logs):
            reran.append(node["name"])
    finished = [node for node in record["nodes"] if node["state"] == "done"]
    return {
        "ran": ran,
        "finished": [node["name"] for node in finished],
        "reran": reran,
        "dag_nodes_rerun_after_kill": len(reran),
        "record_agrees": agrees,
        "products_unchanged": unchanged(finished),
    }


def lines_of(path: Path) -> list[tuple[float, str]]:
    """Time, in whole seconds, and status of each line of a ``status.json``."""
    found = []
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        when = datetime.strptime(f"{entry['date']} {entry['time']}", "%m/%d/%Y %H:%M:%S")
        found.append((when.timestamp(), entry["status"]))
    return found


def start_of(when: float, begins: list[float]) -> int:
    """The start, counted from 1, that a line is of: the last one that had begun."""
    return max(1, sum(int(begin) <= when for begin in begins))


def began_again(log: list[tuple[float, str]], begins: list[float]) -> bool:
    """Whether a task began once more in a later start than that of its success."""
    successes = [start_of(when, begins) for when, status in log if status == "SUCCESS"]
    if not successes:
        return False
    return any(status == "STARTED" and start_of(when, begins) > min(successes) for when, status in log)


def unchanged(finished: list[dict[str, Any]]) -> float:
    """The share of the files that finished nodes recorded which have the recorded hash."""
    same = [
        path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == sha256
        for node in finished
        for path, sha256 in ((Path(name), sha256) for name, sha256 in node["files"].items())
    ]
    return sum(same) / len(same) if same else 0.0


if __name__ == "__main__":
    main()
