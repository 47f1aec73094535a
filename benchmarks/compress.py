"""What compression costs in accuracy and saves in size, on a task of its own and on a real student.

``python -m benchmarks.compress [--seeds 3] [--only digits|student] [--folder DIR]``. :mod:`benchmarks.compress_digits`
says what quantization costs where channels differ much, :mod:`benchmarks.compress_student` what pruning and INT8 cost
the quickstart's student. Two jobs at a time, a thread each; with ``--folder`` what is there is not done again. Prints
tables of means and spreads over the seeds; the last line is one JSON object of means.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from statistics import mean

from benchmarks.folder import kept_or_scratch
from benchmarks.seeds import run_seeds
from radioplat.common import terminal

KINDS = ("student", "digits")  # the long ones first
AT_ONCE = 2


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Compression in figures; see the head of the file.")
    parser.add_argument("--seeds", type=int, default=3, help="how many, from 0")
    parser.add_argument("--only", choices=KINDS)
    parser.add_argument("--folder", type=Path, help="keep everything here, and go on from what is here")
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # in the processes that are started below
    kinds = [kind for kind in KINDS if given.only in (None, kind)]
    with kept_or_scratch(given.folder, "compress") as folder:
        jobs = [(kind, seed) for kind in kinds for seed in range(given.seeds)]
        found = run_seeds(_run, jobs, folder, AT_ONCE, first=_make_inputs if "student" in kinds else None)
    figures: dict[str, float] = {}
    for kind in reversed(kinds):
        runs = [found[kind, seed] for seed in range(given.seeds)]
        figures |= (_digits if kind == "digits" else _student)(runs)
    print(json.dumps({name: round(value, 4) for name, value in figures.items()}))


def _make_inputs(folder: Path) -> None:
    from benchmarks.compress_student import make_inputs

    make_inputs(folder)


def _run(kind: str, seed: int, folder: Path) -> dict:
    from benchmarks.compress_digits import run_digits
    from benchmarks.compress_student import run_student

    return run_digits(seed, folder) if kind == "digits" else run_student(seed, folder)


def _digits(runs: list[dict[str, float]]) -> dict[str, float]:
    """Prints accuracies, and gives the drops against the float net, in points."""
    rows = [[name, *_spread([run[name] for run in runs])] for name in runs[0]]
    terminal.show_table("digits: percent of test images named rightly", ["", "mean", "seeds"], rows)
    drops = {
        f"{name}_drop_x{factor}": [run[f"fp32_x{factor}"] - run[f"{name}_x{factor}"] for run in runs]
        for factor in (8, 16)
        for name in ("ptq", "qat")
    }
    rows = [[name, *_spread(values)] for name, values in drops.items()]
    terminal.show_table("digits: points lost", ["", "mean", "seeds"], rows, "equalization is off")
    return {name: mean(values) for name, values in drops.items() if name.endswith("x8")}


def _student(runs: list[dict]) -> dict[str, float]:
    """Prints what each student is worth and takes, and gives the shares."""
    for table, digits in {"fidelity": 3, "onnx_bytes": 0}.items():
        rows = [[name, *_spread([run[table][name] for run in runs], digits)] for name in runs[0][table]]
        terminal.show_table(f"the quickstart's student: {table}", ["", "mean", "seeds"], rows)
    shares: dict[str, list[float]] = {}
    for run in runs:
        fidelity, size, layers = run["fidelity"], run["onnx_bytes"], run["layers"]
        for name, value in {
            "multiply-accumulates kept": run["macs_kept"],
            "fidelity_kept_half_macs": fidelity["pruned"] / fidelity["control"],
            "fidelity_kept_half_macs_int8": fidelity["pruned INT8"] / fidelity["control"],
            "fidelity kept, INT8 alone": fidelity["control INT8"] / fidelity["control"],
            "size_ratio": size["control"] / size["pruned INT8"],
            "size_ratio_int8": size["control"] / size["control INT8"],
            "int8_coverage": layers["control"]["int8"] / layers["control"]["eligible"],
            "coverage, pruned": layers["pruned"]["int8"] / layers["pruned"]["eligible"],
        }.items():
            shares.setdefault(name, []).append(value)
    rows = [[name, *_spread(values, 3)] for name, values in shares.items()]
    note = (
        "size_ratio: the fp32 ONNX file of the student as it started (the control has its shape) over the INT8 file of "
        "the pruned one; size_ratio_int8: over the control's own INT8 file. The second is below 4 by arithmetic: an "
        "INT8 weight takes a quarter, and biases, norms, position table and scales stay float."
    )
    terminal.show_table("shares", ["", "mean", "seeds"], rows, note)
    for name, found in runs[0]["layers"].items():
        said, unseen = (", ".join(found.get(kind, ())) or "none" for kind in ("float", "unseen"))
        terminal.say(
            f"{name}: {found['int8']} of {found['eligible']} layers in INT8 ({found['told_by']}); "
            f"float: {said}; named by no kernel: {unseen}"
        )
    told = (
        "fidelity_kept_half_macs",
        "fidelity_kept_half_macs_int8",
        "size_ratio",
        "size_ratio_int8",
        "int8_coverage",
    )
    return {name: mean(shares[name]) for name in told}


def _spread(values: list[float], digits: int = 2) -> list[str]:
    return [f"{mean(values):,.{digits}f}", " ".join(f"{value:,.{digits}f}" for value in values)]


if __name__ == "__main__":
    main()
