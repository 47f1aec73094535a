"""Programs that `benchmarks.teach` starts: corpora, runs, exports and the judge, each a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from radioplat.quickstart.weights import MEAN, STD

TEACHERS = {"lite0": "tf_efficientnet_lite0", "lite2": "tf_efficientnet_lite2"}
FIGURE = "pictures.knn"  # crops of held-out cells, named by the picture that they are of


def last_line(module: str, *arguments: object) -> dict[str, Any]:
    """Run ``python -m module`` with ``arguments``; return the JSON object in its last line on stdout.

    Raises:
        CalledProcessError: it failed; its messages are on stderr.
    """
    command = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def distil(home: Path, spec: dict[str, Any]) -> Path:
    """Train by ``radioplat distill`` and export by ``radioplat export``; return the ONNX file, with all heads.

    It takes images of any size. A run that has ended is not repeated, one that was interrupted goes on.

    Raises:
        CalledProcessError: one of them failed; its messages are on stderr.
    """
    home.mkdir(parents=True, exist_ok=True)
    path, onnx = home / "spec.yaml", home / "student.onnx"
    heads = [teacher["name"] for teacher in spec["distill"]["teacher"]]
    export = {"dynamic_resolution": True, "onnx_file": str(onnx), "adaptors": heads}
    path.write_text(yaml.safe_dump({"results_dir": str(home), "export": export, **spec}), encoding="utf-8")
    if not onnx.exists():
        for task in ("distill", "export"):
            command, begin = [sys.executable, "-m", "radioplat.cli", task, "-e", str(path)], time.monotonic()
            subprocess.run(command, check=True, stdout=sys.stderr)
            if task == "distill":
                with (home / "seconds").open("a") as file:
                    file.write(f"{time.monotonic() - begin:.1f}\n")
    return onnx


def seconds_of(home: Path) -> float:
    """Return the seconds by the clock that the training of :func:`distil` took, over all starts that ended well."""
    return sum(map(float, (home / "seconds").read_text().split()))


def teacher(name: str, weights: Path, mode: str) -> dict[str, Any]:
    """Return the spec of one of :data:`TEACHERS`; ``mode`` is ``combo`` or ``spatial``."""
    return {
        "name": name,
        "model": {"backbone": {"type": TEACHERS[name]}},
        "pretrained_teacher_model_path": str(weights),
        "mode": mode,
        "loss_type": "BALANCED",
        "summary_loss_type": "cosine",
        "norm_mean": list(MEAN),
        "norm_std": list(STD),
    }


def embedded(target: Path, corpora: Path, *model: object) -> Path:
    """Embed the corpora by the judge's program; return the file, which is not written again."""
    if not target.exists():
        last_line("benchmarks.judges.embed", *model, "--corpora", corpora, "--out", target)
    return target


def compared(ours: Sequence[Path], theirs: Sequence[Path]) -> dict[str, Any]:
    """Return the judge's figures of ``ours`` and differences from ``theirs``: one file for each seed on both sides."""
    return last_line("benchmarks.judges.knn", *ours, "--against", *theirs)
