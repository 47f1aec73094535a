"""Does a restructured checkout behave as the old one did? Imports nothing of radioplat; knows it by its commands alone.

``python -m benchmarks.judges.same_behaviour OLD NEW`` runs, in each checkout, with this interpreter:

- ``plan`` of every spec in ``specs/``: what it prints, and its exit status;
- the first 20 steps of the quickstart with one worker and with two: ids that the ledger recorded, losses of each step,
  the exported ONNX file's tensors;
- then NEW evaluates the checkpoint that OLD trained, and OLD's figures are compared with it.

Last line on stdout: one JSON object; every ``*_equal`` must be true.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import onnx
import pyarrow.parquet as pq

STEPS = 20
WORKERS = (1, 2)


def main() -> int:
    """Run both checkouts and compare."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--only", choices=("plans", "runs"), help="one half; default: both")
    args = parser.parse_args()
    found: dict[str, object] = {}
    with tempfile.TemporaryDirectory(prefix="same_behaviour") as scratch:
        sides = {"old": args.old.resolve(), "new": args.new.resolve()}
        if args.only != "runs":
            plans = {side: _plans(checkout) for side, checkout in sides.items()}
            for name in sorted(set(plans["old"]) | set(plans["new"])):
                _show_difference(f"plan of {name}", plans["old"].get(name, ""), plans["new"].get(name, ""))
            found["plans_equal"] = plans["old"] == plans["new"]
        if args.only != "plans":
            for workers in WORKERS:
                found |= _compare_runs(sides, Path(scratch), workers)
            found["old_checkpoint_equal"] = _cross(sides, Path(scratch))
    print(json.dumps(found))
    return 0 if all(value for name, value in found.items() if name.endswith("_equal")) else 1


def _run(checkout: Path, *arguments: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1", "COLUMNS": "200", "TERM": "dumb"}
    command = [sys.executable, "-m", "radioplat.cli", *arguments]
    return subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)


def _plans(checkout: Path) -> dict[str, str]:
    found = {}
    for spec in sorted((checkout / "specs").glob("*.yaml")):
        done = _run(checkout, "plan", "-e", f"specs/{spec.name}")
        text = (done.stdout + done.stderr).replace(str(checkout), "CHECKOUT")
        text = re.sub(r"[\d.,]+ (GB|GiB|MB|s)\b", "N", text)  # what is free on the machine, and seconds
        found[spec.name] = f"{text}\nexit status {done.returncode}"
    return found


def _quickstart(checkout: Path, results: Path, workers: int) -> None:
    done = _run(checkout, "quickstart", *_overrides(results, workers))
    if done.returncode:
        raise SystemExit(f"the quickstart in {checkout} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")


def _overrides(results: Path, workers: int) -> list[str]:
    return [f"results_dir={results}", f"train.max_steps={STEPS}", f"train.num_gpus={workers}"]


def _compare_runs(sides: dict[str, Path], scratch: Path, workers: int) -> dict[str, object]:
    runs = {}
    for side, checkout in sides.items():
        results = scratch / f"{side}{workers}"
        _quickstart(checkout, results, workers)
        runs[side] = {"ids": _ids(results), "losses": _losses(results), "onnx": _tensors(results)}
    old, new = runs["old"], runs["new"]
    for side in sorted(set(old["losses"]) ^ set(new["losses"])):
        print(f"{workers} workers: only one side has the loss {side}", file=sys.stderr)
    for side, other in (("old", "new"), ("new", "old")):
        if only := sorted((Counter(runs[side]["ids"]) - Counter(runs[other]["ids"])).elements()):
            print(f"{workers} workers: {len(only)} ledger rows only in {side}, first {only[:3]}", file=sys.stderr)
    common = old["losses"].keys() & new["losses"].keys()
    off = max((abs(old["losses"][at] - new["losses"][at]) for at in common), default=float("nan"))
    return {
        f"ids_{workers}_equal": old["ids"] == new["ids"] and len(old["ids"]) > 0,
        f"losses_{workers}_equal": old["losses"] == new["losses"] and len(common) >= STEPS,
        f"losses_{workers}_max_difference": off,
        f"onnx_{workers}_equal": old["onnx"] == new["onnx"],
    }


def _ids(results: Path) -> list[tuple[int, ...]]:
    rows = []
    for path in sorted((results / "distill").rglob("consumed*.parquet")):
        table = pq.read_table(path, columns=["step", "position", "id", "checksum"])
        rows += list(zip(*(table.column(name).to_pylist() for name in table.column_names), strict=True))
    return sorted(rows)


def _losses(results: Path) -> dict[tuple[int, str], float]:
    """Losses of each step in the run's status lines, by ``(step, name)``."""
    lines = [json.loads(line) for line in (results / "distill" / "status.json").read_text().splitlines()]
    figures = {(int(line["step"]), n): v for line in lines if "step" in line for n, v in (line["kpi"] or {}).items()}
    return {(step, name): v for (step, name), v in figures.items() if name.startswith("loss") and isinstance(v, float)}


def _tensors(results: Path) -> dict[str, str]:
    """Digest of each weight in the exported file; weights of equal runs are equal to the bit."""
    found = {}
    for path in sorted(results.rglob("*.onnx")):
        for tensor in onnx.load(path).graph.initializer:
            data = onnx.numpy_helper.to_array(tensor).tobytes()
            found[f"{path.name}:{tensor.name}"] = hashlib.sha256(data).hexdigest()
    return found


def _cross(sides: dict[str, Path], scratch: Path) -> bool:
    """Whether NEW finds in OLD's checkpoint what OLD found."""
    results = scratch / "old1"
    before = json.loads((results / "evaluate" / "results.json").read_text())
    spec = str(sides["new"] / "specs" / "quickstart.yaml")
    done = _run(sides["new"], "evaluate", "-e", spec, *_overrides(results, 1))
    if done.returncode:
        print(done.stdout, done.stderr, file=sys.stderr)
        return False
    after = json.loads((results / "evaluate" / "results.json").read_text())
    return _numbers(before) == _numbers(after)


def _numbers(value: object, where: str = "") -> dict[str, float]:
    if isinstance(value, dict):
        return {k: v for name, item in value.items() for k, v in _numbers(item, f"{where}/{name}").items()}
    if isinstance(value, list):
        return {k: v for i, item in enumerate(value) for k, v in _numbers(item, f"{where}/{i}").items()}
    timed = re.search(r"second|_s$|per_s", where)
    return {where: float(value)} if isinstance(value, (int, float)) and not timed else {}


def _show_difference(what: str, old: str, new: str) -> None:
    sides = old.splitlines(), new.splitlines()
    for line in difflib.unified_diff(*sides, f"old {what}", f"new {what}", lineterm="", n=0):
        print(line, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
