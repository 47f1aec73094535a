"""Heads that are fitted before they teach: how many steps do they save?"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from benchmarks.teach import start
from benchmarks.teach.programs import distil, exported, last_line

LENGTH = "quickstart"


def run(folder: Path, seeds: list[int]) -> dict[str, Any]:
    """Find the first checkpoint of a run with fitted heads that is as near to the second teacher as random heads end.

    The runs with fitted heads are those of part ``start``.
    """
    found = [_seed(folder, seed) for seed in seeds]
    return {
        "head_fit": found,
        "head_fit_steps_saved": sum(each["saved"] for each in found) / len(found),
    }


def _seed(folder: Path, seed: int) -> dict[str, Any]:
    fitted = start.student(folder, LENGTH, seed)
    spec = start.spec(folder, LENGTH, seed)
    unfitted = copy.deepcopy(spec)
    unfitted["distill"]["head_fit"] = {"enabled": False}
    random = distil(folder / "fit" / f"random_seed_{seed}", unfitted)
    home = folder / "fit" / f"fitted_seed_{seed}"
    steps = {int(path.name.rpartition("_")[2]): path for path in fitted.parent.glob("distill/model_epoch_*_step_*")}
    order = sorted(steps)
    low, high = 0, len(order)  # the answer is in [low, high]; the last one stands for none
    judged: dict[int, dict[str, Any]] = {}
    while low < high:
        middle = (low + high) // 2
        step = order[middle]
        onnx = exported(home / f"step_{step}", {**spec, "export": {"checkpoint": str(steps[step])}}, [start.SECOND])
        judged[step] = last_line("benchmarks.judges.fidelity", onnx, *start.second(folder), "--against", random)
        reached = judged[step]["figure"]["value"] >= judged[step]["against"]["value"]
        low, high = (low, middle) if reached else (middle + 1, high)
    total = start.LENGTHS[LENGTH]
    reached_at = order[low] if low < len(order) else None
    return {
        "steps": total,
        "reached_at": reached_at,
        "saved": 0.0 if reached_at is None else 1 - reached_at / total,
        "random": next(iter(judged.values()))["against"]["value"],
        "fitted": {step: judged[step]["figure"]["value"] for step in sorted(judged)},
    }
