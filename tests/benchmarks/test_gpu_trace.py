"""What ``benchmarks.gpu`` reads out of a trace, on made-up events; its tables, its exit status, its limits of time."""

from __future__ import annotations

import json
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.gpu import __main__ as program
from benchmarks.gpu import interleave, ladder, trace
from benchmarks.gpu.setting import Setting, model_of

CPU, CUDA = torch.autograd.DeviceType.CPU, torch.autograd.DeviceType.CUDA


def event(name: str, device: Any, begin: float, end: float, thread: int = 1, correlation: int = 0) -> Any:
    """An event of kineto; times in seconds."""
    values = {
        "name": name, "device_type": device, "start_ns": round(1e9 * begin), "duration_ns": round(1e9 * (end - begin)),
        "start_thread_id": thread, "correlation_id": correlation,
    }  # fmt: skip
    return SimpleNamespace(**{key: lambda value=value: value for key, value in values.items()})


def test_the_union_of_intervals_counts_what_overlaps_once():
    assert trace.union([(0, 2), (1, 3), (5, 6), (5, 5.5)]) == 4
    assert trace.union([]) == 0


def test_kernels_launched_inside_the_range_are_the_teachers_and_overlap_is_counted():
    events = [
        event(trace.TEACHER, CPU, 0.0, 1.0, thread=2),
        event("cudaLaunchKernel", CPU, 0.1, 0.2, thread=2, correlation=7),
        event("cudaLaunchKernel", CPU, 0.1, 0.2, thread=1, correlation=8),  # at the same time in another thread
        event("cudaLaunchKernelExC", CPU, 2.1, 2.2, thread=2, correlation=9),  # after the range
        event("gemm", CUDA, 1.0, 4.0, correlation=7),
        event("gemm", CUDA, 3.0, 5.0, correlation=8),
        event("add", CUDA, 5.0, 6.0, correlation=9),
        event(trace.TEACHER, CUDA, 1.0, 9.0, correlation=7),  # the range as the device saw it: no kernel
        event("Memcpy HtoD", CUDA, 6.0, 8.0, correlation=10),
    ]
    found = trace.kernels(events, wall=10.0)
    assert found == {
        "idle_share": 0.5, "busy_student": pytest.approx(0.3), "busy_teachers": pytest.approx(0.3),
        "overlap": pytest.approx(0.1), "launches": 3, "kernels": 3,
    }  # fmt: skip


def test_parts_are_noted_between_start_and_stop_alone():
    parts = trace.Parts("cpu")
    parts.mark("forward")
    parts.start()
    for _ in range(2):
        parts.mark("")
        time.sleep(0.01)
        parts.mark("forward")
    parts.stop()
    parts.mark("backward")
    found = parts.milliseconds(steps=2)
    assert list(found) == ["forward"] and found["forward"] >= 10


def test_ratios_are_taken_inside_rounds():
    found = interleave.speeds({"ours": [1.0, 2.0, 4.0], "by_hand": [2.0, 2.0, 2.0]}, images=8)
    assert found["ours"]["images_per_s"] == 4 and found["ours"]["spread"] == [2, 8]
    assert found["ratio"] == {"median": 1.0, "spread": [0.5, 2.0]}


def test_sides_run_in_turn_and_the_other_way_round_in_every_other_round():
    calls: list[str] = []
    sides = {name: lambda name=name: calls.append(name) for name in ("ours", "by_hand")}
    times = interleave.in_turn(sides, seconds=0.0, device="cpu")
    assert all(len(values) == interleave.ROUNDS for values in times.values())
    assert calls[-4:] == ["by_hand", "ours", "ours", "by_hand"]


@pytest.mark.parametrize(
    ("inline", "ddp", "floor", "rung", "passed"),
    [
        (None, None, 0.0, "ddp", True),
        (None, None, 0.5, "ddp", False),
        (None, 0.6, 0.5, "ddp", True),
        (0.4, 0.6, 0.5, "inline", False),
    ],
)
def test_a_floor_judges_the_rung_with_teachers_first(inline, ddp, floor, rung, passed):
    rungs = {name: {"ours": {"mfu": value}} for name, value in (("inline", inline), ("ddp", ddp)) if value is not None}
    found = program.judge(rungs, floor)
    assert (found["rung"], found["passed"]) == (rung, passed)


def setting_of(folder, **changes: Any) -> Setting:
    """A setting of a tiny student on a CPU."""
    given = {
        "device": "cpu", "gpus": 1, "student": model_of("tiny"), "teachers": (model_of("tiny_a"),), "seconds": 1.0,
        "micro_batches": 2, "batch": 4, "most": 8, "precision": "fp32", "compiles": False, "why_eager": "",
        "scratch": str(folder), "gflop": {"student": 1.0, "heads": 1.0, "teachers": {"tiny_a": 1.0}},
    }  # fmt: skip
    return Setting(**{**given, **changes})


def test_a_setting_is_the_same_after_a_file(tmp_path):
    setting = setting_of(tmp_path)
    setting.write(tmp_path / "setting.json")
    assert Setting.read(tmp_path / "setting.json") == setting


def test_a_rank_that_fails_ends_the_others_and_one_that_hangs_ends_at_the_limit(tmp_path, monkeypatch):
    program = "import os, sys, time; sys.exit(3) if os.environ['RANK'] == sys.argv[1] else time.sleep(60)"
    start = ladder._start
    for failing, limit, words in (("1", 50.0, "ended with 3"), ("none", 1.0, "more than 1 s")):

        def instead(command, variables, setting, stderr, failing=failing):
            return start([sys.executable, "-c", program, failing], variables, setting, stderr)

        monkeypatch.setattr(ladder, "_start", instead)
        begin = time.monotonic()
        found = ladder.run_group(setting_of(tmp_path, gpus=2), ("student", "ddp"), limit, lambda found: None)
        assert time.monotonic() - begin < 40 and words in found["student"]["error"] and "error" in found["ddp"]


def test_results_of_a_rank_that_was_killed_while_it_wrote_are_the_whole_lines(tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_text(json.dumps({"student": {"a": 1}}) + '\n{"losses": {"a"')
    assert ladder._read(path) == {"student": {"a": 1}}


def test_rungs_without_models_or_a_micro_batch_are_not_started(tmp_path):
    for changes, words in (({"gflop": {}}, "`device` failed"), ({"batch": 0}, "no micro-batch")):
        found = ladder.run_group(setting_of(tmp_path, **changes), ("zero2",), 1.0, lambda found: None)
        assert words in found["zero2"]["unmeasured"]
