"""Distillation images per second through the teacher service, in this process, and by a loop written by hand.

``python -m benchmarks.teachers [--rounds N] [--precision fp32|bf16] [--without-lightly] [--only SIDE]``. Two ViT-S
teachers at 224 pixels teach a ViT-Ti and a ViT-S. Every round runs every side once, each in a process of its own;
ratios are taken inside a round. The loop has its images in memory and takes the faster of one and all threads; our
sides read JPEGs from shards. Then: a second trial on a warm feature cache against the first (a shallower ViT-Ti, so
that teachers are about three quarters of the cost), LightlyTrain's ``distillationv3`` from one ViT-S at batch 32, and
the transfer of features between processes.

On a machine with a GPU all sides use one GPU, in bf16 unless told otherwise, with larger batches and more steps. Actors
are left out there: they need GPUs of their own, which the loop does not have (``benchmarks.gpu --only store`` lets
them share one).

The last line is one JSON object of medians; a ``vs_bare`` figure is that of the student with the lower one.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

import timm
import torch
from safetensors.torch import save_file

from benchmarks.ingest_photographs import make_shards
from benchmarks.lightly_environment import lightly_python
from benchmarks.teachers_sides import STUDENTS, Work, save
from radioplat.common import terminal

# Two cores: teachers work ahead with a thread each on what the student, which has all cores, leaves.
ACTORS = [
    "cluster.mode=ray",
    "cluster.cpus_per_worker=0.5",
    "cluster.cpus_per_decode=0.25",
    "teachers.t0.num_cpus=0.5",
    "teachers.t1.num_cpus=0.5",
]
LIMIT_S = 1000.0
GPU_WORK = {"batch": 64, "steps": 60, "device": "cuda"}  # a step of 8 images would measure launches
SHALLOW = 7  # blocks of the ViT-Ti beside which two ViT-S take about three quarters of the time


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description="Speed of distillation; see the head of the file.")
    arguments.add_argument("--rounds", type=int, help=f"default: as many as {LIMIT_S / 60:.0f} minutes hold")
    arguments.add_argument("--only", action="append", default=[], help="sides with this in their label; repeatable")
    arguments.add_argument("--precision", choices=("fp32", "bf16"), help="default: bf16 on a GPU")
    arguments.add_argument("--without-lightly", action="store_true", help="do not install or run LightlyTrain")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="teachers") as scratch:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        bench = Bench(Path(scratch), given.precision or ("bf16" if device == "cuda" else "fp32"), device)
        begin, rounds = time.monotonic(), []
        while not rounds or _another(given.rounds, len(rounds), time.monotonic() - begin):
            rounds.append(bench.round(len(rounds), not given.without_lightly, given.only))
        transfer = bench.side("transfer", Work("", [], "", "", ""))
    _report(rounds, transfer, bench.describe())


def _another(wanted: int | None, done: int, seconds: float) -> bool:
    return done < wanted if wanted else seconds * (done + 1) / done < LIMIT_S


class Bench:
    """Inputs, and the sides on them, all on one device."""

    def __init__(self, folder: Path, precision: str, device: str) -> None:
        self._folder, self._runs = folder, 0
        shards, images = folder / "shards", folder / "images"
        make_shards(shards, shards=1)
        images.mkdir()
        for path in shards.glob("*.tar"):
            with tarfile.open(path) as tar:
                tar.extractall(images, filter="data")
        weights = []
        for seed in range(2):
            torch.manual_seed(seed)
            weights.append(str(folder / f"teacher{seed}.safetensors"))
            save_file(timm.create_model("vit_small_patch16_224", num_classes=0).state_dict(), weights[-1])
        self._work = Work("vit_tiny_patch16_224", weights, str(shards), str(images), "", precision=precision)
        self._gpu = device == "cuda"
        if self._gpu:
            self._work = dataclasses.replace(self._work, **GPU_WORK)

    def describe(self) -> dict[str, str]:
        """Return the device and the number format of all sides."""
        name = torch.cuda.get_device_name(0) if self._gpu else "cpu"
        return {"device": name, "precision": self._work.precision}

    def round(self, number: int, with_lightly: bool, only: list[str]) -> dict[str, dict]:
        """Every side once; every other round the other way round."""
        plan: list[tuple[str, str, Work]] = []
        for student in STUDENTS:
            work = dataclasses.replace(self._work, student=student)
            if not self._gpu:
                plan.append((f"{student}, actors", "ours", dataclasses.replace(work, overrides=ACTORS)))
            plan += [
                (f"{student}, bare loop", "bare", work),
                (f"{student}, inline", "ours", work),
            ]
        plan = plan if number % 2 == 0 else plan[::-1]
        cache = dataclasses.replace(self._work, depth=SHALLOW, cache=str(self._folder / f"cache{number}"))
        plan += [("cold cache", "ours", cache), ("warm cache", "ours", cache)]
        if with_lightly:
            one = dataclasses.replace(self._work, weights=self._work.weights[:1])
            one = one if self._gpu else dataclasses.replace(one, batch=32, steps=3)
            peers = [("one teacher, LightlyTrain", "lightly", one), ("one teacher, inline", "ours", one)]
            plan += peers if number % 2 == 0 else peers[::-1]
        found = {}
        for label, side, work in plan:
            if only and not any(part in label for part in only):
                continue
            found[label] = self.side(side, work)
            print(f"round {number + 1}, {label}: {found[label]}", file=sys.stderr, flush=True)
        return found

    def side(self, side: str, work: Work) -> dict:
        """Run one in a process of its own; what it prints goes to a file that is shown where it fails."""
        self._runs += 1
        folder = self._folder / f"run{self._runs}"
        folder.mkdir()
        path = save(dataclasses.replace(work, scratch=str(folder)), folder / "work.json")
        python = lightly_python() if side == "lightly" else sys.executable
        # Thread counts are part of what is measured.
        environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
        command = [str(python), "-m", "benchmarks.teachers_sides", side, str(path)]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True)
        if ended.returncode:
            sys.exit(f"{side} failed:\n{ended.stderr[-4000:]}")
        shutil.rmtree(folder)
        return json.loads(ended.stdout.strip().splitlines()[-1])


def _report(rounds: list[dict[str, dict]], transfer: dict, machine: dict[str, str]) -> None:
    ratios: dict[str, list[float]] = {}
    for found in rounds:
        for key, pairs in _pairs().items():
            for mine, theirs in pairs:
                if mine in found and theirs in found:
                    name = f"{key} {mine.split(',')[0]}" if len(pairs) > 1 else key
                    ratios.setdefault(name, []).append(found[mine]["images_s"] / found[theirs]["images_s"])
    rows = []
    for label in rounds[0]:
        speeds = sorted(found[label]["images_s"] for found in rounds)
        rest = rounds[-1][label]
        notes = [f"{k} {v:.2f}" if isinstance(v, float) else f"{k} {v}" for k, v in rest.items() if k != "images_s"]
        spread = f"{speeds[0]:.2f} to {speeds[-1]:.2f}"
        rows.append([label, f"{statistics.median(speeds):.2f}", spread, ", ".join(notes)])
    terminal.show_table("images/s", ["side", "median", "spread", "of the last round"], rows)
    shown = [[k, f"{statistics.median(v):.3f}", f"{min(v):.3f} to {max(v):.3f}"] for k, v in ratios.items()]
    terminal.show_table("ours over theirs", ["ratio", "median", "spread"], shown)
    print(f"transfer of features {transfer['gb_s']:.2f} GB/s; memcpy {transfer['memcpy_gb_s']:.2f} GB/s")
    medians = {name: statistics.median(values) for name, values in ratios.items()}
    result: dict[str, float | str | None] = {**machine}
    for key in _pairs():
        own = [value for name, value in medians.items() if name.split()[0] == key]
        result[key] = round(min(own), 3) if own else None
    print(json.dumps(result | {"transfer_gb_s": round(transfer["gb_s"], 2)}))


def _pairs() -> dict[str, list[tuple[str, str]]]:
    """JSON key -> (ours, theirs), by label."""
    return {
        "vs_bare_actors": [(f"{s}, actors", f"{s}, bare loop") for s in STUDENTS],
        "vs_bare_inline": [(f"{s}, inline", f"{s}, bare loop") for s in STUDENTS],
        "warm_vs_cold": [("warm cache", "cold cache")],
        "vs_lightly": [("one teacher, inline", "one teacher, LightlyTrain")],
    }


if __name__ == "__main__":
    main()
