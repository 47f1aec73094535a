"""Is each student the same whatever is killed, and when? The demonstration with five seeds of kills.

``python -m benchmarks.demo_seeds [--folder DIR] [--seeds 5]``. Seed 0 runs all of `benchmarks.demo`; the others are
compared with its undisturbed run, which does not depend on the seed, and leave kNN, engines and replay out. An hour on
two cores; a second call with the same folder goes on.

The last line on stdout is one JSON object: ``hashes_equal`` (the least of a seed), ``hashes_equal_over_seeds`` (1.0 if
each student has one hash in all runs), ``blows`` (the fewest of a seed), ``missing`` and ``repeated`` (of all seeds),
``teacher_forwards_per_sample`` (the most), ``seconds_whole`` (of seed 0), ``kinds`` (kills of all seeds), and mean,
least and most of ``teacher_forwards_again``, ``goodput``, ``seconds_a_kill`` and ``starts``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.demonstration.runs import ALONE

SHARED = (ALONE, f"{ALONE}.done", "inputs", "index", "weights")
SPREAD = ("teacher_forwards_again", "goodput", "seconds_a_kill", "starts")


def main() -> int:
    """Run all seeds, and print; return 1 if one of them failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("results/demo_seeds"))
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    homes = [given.folder / str(seed) for seed in range(given.seeds)]
    status = [run(seed, home, homes[0]) for seed, home in enumerate(homes)]
    print(json.dumps(summary([json.loads((home / "figures.json").read_text()) for home in homes])))
    return max(status)


def run(seed: int, home: Path, first: Path) -> int:
    """Run the demonstration with one seed, unless its figures are there; return its exit status."""
    if (home / "figures.json").exists():
        return 0
    command = [sys.executable, "-m", "benchmarks.demo", "--seed", str(seed), "--folder", str(home)]
    if home != first:
        command.append("--brief")
        for name in SHARED if not home.exists() else ():
            copy = shutil.copytree if (first / name).is_dir() else shutil.copy2
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            copy(first / name, home / name)
    return subprocess.run(command, stdout=sys.stderr).returncode


def summary(seeds: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of all seeds together."""
    hashes: dict[str, set[str]] = {}
    kinds: Counter[str] = Counter()
    for figures in seeds:
        kinds.update(figures["kinds"])
        for name, each in figures["by_student"].items():
            hashes.setdefault(name, set()).update((each["sha256"], each["alone"]))
    return {
        "hashes_equal": min(figures["hashes_equal"] for figures in seeds),
        "hashes_equal_over_seeds": float(all(len(each) == 1 for each in hashes.values())),
        "blows": min(figures["blows"] for figures in seeds),
        "missing": sum(figures["missing"] for figures in seeds),
        "repeated": sum(figures["repeated"] for figures in seeds),
        "teacher_forwards_per_sample": max(figures["teacher_forwards_per_sample"] for figures in seeds),
        "seconds_whole": seeds[0]["seconds"],
        "kinds": dict(kinds),
        **{key: spread([figures[key] for figures in seeds]) for key in SPREAD},
    }


def spread(values: list[float]) -> dict[str, float]:
    """Return mean, least and most."""
    return {"mean": round(statistics.mean(values), 4), "least": min(values), "most": max(values)}


if __name__ == "__main__":
    sys.exit(main())
