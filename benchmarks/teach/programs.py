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


def radioplat(task: str, home: Path, spec: dict[str, Any]) -> None:
    """Run ``radioplat TASK`` on ``spec``, with results in ``home``.

    Raises:
        CalledProcessError: it failed; its messages are on stderr.
    """
    subprocess.run([sys.executable, *_command(task, home, spec)], check=True, stdout=sys.stderr)


def _command(task: str, home: Path, spec: dict[str, Any]) -> list[str]:
    """Write the spec; return the words behind ``python``."""
    home.mkdir(parents=True, exist_ok=True)
    path = home / f"{task}.yaml"
    path.write_text(yaml.safe_dump({"results_dir": str(home), **spec}), encoding="utf-8")
    return ["-m", "radioplat.cli", task, "-e", str(path)]


def exported(home: Path, spec: dict[str, Any], heads: Sequence[str] = ()) -> Path:
    """Export by ``radioplat export``; return the ONNX file, which takes images of any size and is not written again.

    Raises:
        CalledProcessError: it failed; its messages are on stderr.
    """
    onnx = home / "student.onnx"
    export = {"dynamic_resolution": True, "onnx_file": str(onnx), "adaptors": list(heads), **spec.get("export", {})}
    if not onnx.exists():
        radioplat("export", home, {**spec, "export": export})
    return onnx


def distil(home: Path, spec: dict[str, Any]) -> Path:
    """Train by ``radioplat distill`` and export; return the ONNX file, with all heads.

    A run that has ended is not repeated, one that was interrupted goes on.

    Raises:
        CalledProcessError: one of them failed; its messages are on stderr.
    """
    if not (home / "student.onnx").exists():
        timed(home, _command("distill", home, spec))
    return exported(home, spec, [teacher["name"] for teacher in spec["distill"]["teacher"]])


def timed(home: Path, command: Sequence[object]) -> None:
    """Run a program, or with ``-m`` a module of this environment, and note its seconds for :func:`seconds_of`.

    Raises:
        CalledProcessError: it failed; its messages are on stderr.
    """
    home.mkdir(parents=True, exist_ok=True)
    words = [*([sys.executable] if command[0] == "-m" else []), *map(str, command)]
    begin = time.monotonic()
    subprocess.run(words, check=True, stdout=sys.stderr)
    with (home / "seconds").open("a") as file:
        file.write(f"{time.monotonic() - begin:.1f}\n")


def seconds_of(home: Path) -> float:
    """Return the seconds by the clock that the training took, over all starts that ended well."""
    return sum(map(float, (home / "seconds").read_text().split()))


def teacher(name: str, weights: Path, mode: str) -> dict[str, Any]:
    """Return the spec of one of :data:`TEACHERS`; ``mode`` is ``combo`` or ``spatial``."""
    return {
        "name": name,
        "model": {"backbone": {"type": TEACHERS[name]}},
        "pretrained_teacher_model_path": str(weights),
        "mode": mode,
        "norm_mean": list(MEAN),
        "norm_std": list(STD),
    }


def embedded(target: Path, corpora: Path, *model: object) -> Path:
    """Embed the corpora by the judge's program; return the file, which is not written again."""
    if not target.exists():
        last_line("benchmarks.judges.embed", *model, "--corpora", corpora, "--out", target)
    return target


def compared(ours: Sequence[Path], theirs: Sequence[Path]) -> dict[str, Any]:
    """Return the judge's figures of ``ours``, and differences from ``theirs`` if given: files by seed on both sides."""
    return last_line("benchmarks.judges.knn", *ours, *(["--against", *theirs] if theirs else []))
