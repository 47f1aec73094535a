"""Run the rungs in processes of their own, a group after another, within a limit of time."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu.setting import Model, Setting

ROOT = Path(__file__).parents[2]
# Rungs of one group share a process, and what it has compiled. The most important ones come first.
GROUPS: tuple[tuple[str, ...], ...] = (
    ("device",),
    ("batch", "student", "losses", "ddp"),
    ("zero2",),
    ("inline",),
    ("copies",),
    ("decoding",),
    ("store",),
    ("nixl",),
    ("decode",),
    ("stalls",),
    ("matrix",),
    ("latency",),
)
NAMES = [name for group in GROUPS for name in group]
ON_RAY = ("store", "nixl")  # start a Ray cluster on this machine
SINGLE = ("decode", "latency")  # of one process, whatever the number of GPUs
START_S = 145.0  # for one process's imports, models and compilation; on an H200 a rung with teachers took 100
ON_RAY_START_S = 350.0  # the actors compile the teachers, and then the loop by hand does; on an H200 185 was too little
LEAST_S = 10.0  # left of the time, to start a process

Write = Callable[[dict[str, Any]], None]


def climb(setting: Setting, names: list[str], limit: float, write: Write) -> dict[str, Any]:
    """Run the rungs ``names``; return the results by name.

    Args:
        limit: seconds of wall time for everything; a rung for which none are left is ``unmeasured``.
        write: called with the results so far after each group, and while a group runs.
    """
    begin = time.monotonic()
    groups = [tuple(name for name in group if name in names) for group in GROUPS]
    groups = [group for group in groups if group]
    setting = dataclasses.replace(setting, seconds=setting.seconds / max(1, sum(map(len, groups)) + 1))
    results: dict[str, Any] = {}
    for group in groups:
        left = begin + limit - time.monotonic()
        if left < LEAST_S:
            results |= {name: {"unmeasured": "the time was used up"} for name in group}
        else:
            start = ON_RAY_START_S if group[0] in ON_RAY else START_S
            most = min(left, start + 4 * setting.seconds * len(group))
            before = dict(results)
            results |= run_group(setting, group, most, partial(_write_both, write, before))
        setting = with_results(setting, results)
        write(results)
    return results


def _write_both(write: Write, before: dict[str, Any], found: dict[str, Any]) -> None:
    write(before | found)


def with_results(setting: Setting, results: dict[str, Any]) -> Setting:
    """Return the setting with the models, the peak and the micro-batch that rungs have found."""
    device, batch = results.get("device", {}), results.get("batch", {})
    changes: dict[str, Any] = {}
    if "gflop" in device:
        changes["teachers"] = tuple(Model(**fields) for fields in device["models"]["teachers"])
        changes |= {"gflop": device["gflop"], "peak": device["published_bf16_flops"]}
    if not setting.batch and "batch" in batch:
        changes["batch"] = batch["batch"]
    return dataclasses.replace(setting, **changes)


def run_group(setting: Setting, group: tuple[str, ...], limit: float, write: Write) -> dict[str, Any]:
    """Run a group on all ranks, at most ``limit`` seconds; a rung without a result has the reason instead."""
    if any(name not in ("device", "batch") for name in group) and not setting.gflop:
        return {name: {"unmeasured": "the rung `device` failed"} for name in group}
    if not setting.batch and "batch" not in group and group != ("device",):
        return {name: {"unmeasured": "no micro-batch was found"} for name in group}
    if group[0] in SINGLE:
        setting = dataclasses.replace(setting, gpus=1)
    with tempfile.TemporaryDirectory(prefix="rung", dir=setting.scratch) as folder:
        results, given, errors = (Path(folder) / name for name in ("results.jsonl", "setting.json", "stderr"))
        setting.write(given)
        command = [sys.executable, "-m", "benchmarks.gpu.rank", str(results), str(given), *group]
        with errors.open("w+") as stderr:
            ranks = [_start(command, rank, setting, stderr) for rank in environments(setting)]
            ended = _wait(ranks, limit, lambda: write(_read(results)))
            stderr.seek(0)
            tail = stderr.read()
        if os.environ.get("BENCHMARK_VERBOSE"):
            sys.stderr.write(tail)
        found = _read(results)
    words = " ".join(tail.strip().splitlines()[-1:])[:500]
    for name in group:
        reason = f"it took more than {limit:.0f} s" if ended is None else f"its process ended with {ended}: {words}"
        found.setdefault(name, {"error": reason})
    return found


def environments(setting: Setting) -> list[dict[str, str]]:
    """Return the variables of each rank, as torchrun sets them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(setting.gpus)}
    common["LOCAL_WORLD_SIZE"] = common["WORLD_SIZE"]
    return [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(setting.gpus)]


def _start(command: list[str], variables: dict[str, str], setting: Setting, stderr: Any) -> subprocess.Popen[bytes]:
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, **variables, "PYTHONPATH": path}
    flags = ["-S"] if sys.flags.no_site else []
    command = [command[0], *flags, *command[1:]]
    # In a session of its own, so that processes which it starts end with it.
    return subprocess.Popen(command, env=environment, stdout=stderr, stderr=stderr, cwd=ROOT, start_new_session=True)


def _wait(ranks: list[subprocess.Popen[bytes]], limit: float, look: Callable[[], None]) -> int | None:
    """Wait for all ranks; return the status of the first that failed, else 0, or None at the limit.

    When one has failed, the others, which would wait for it, are killed.
    """
    end, looked = time.monotonic() + limit, time.monotonic()
    try:
        while True:
            codes = [rank.poll() for rank in ranks]
            failed = [code for code in codes if code]
            if failed:
                return failed[0]
            if None not in codes:
                return 0
            if time.monotonic() > end:
                return None
            if time.monotonic() > looked + 1:
                looked = time.monotonic()
                look()
            time.sleep(0.05)
    finally:
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.killpg(rank.pid, signal.SIGKILL)
            rank.wait()


def _read(path: Path) -> dict[str, Any]:
    """Return the results that are complete lines of the file."""
    found: dict[str, Any] = {}
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
            if line.endswith("\n"):
                found |= json.loads(line)
    return found
