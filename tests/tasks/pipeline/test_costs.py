"""The progress and the bill of a node, read from the records of its runs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from radioplat.tasks.pipeline.costs import add_costs, last_step
from radioplat.tasks.pipeline.record import NodeEntry
from radioplat.tracking.attempts.goodput import BEGIN, END, FILE, RUN, Goodput, goodput
from radioplat.tracking.json_lines import append_line
from radioplat.tracking.status import StatusLog


def trained(folder: Path, step: int, at: float, ended: bool = False) -> None:
    """The status of a run in ``folder`` after ``step`` of eight steps, written at this time."""
    folder.mkdir(parents=True, exist_ok=True)
    with StatusLog(folder / "status.json") as status:
        status.write("distill starts")
        if step:
            status.progress(epoch=0, max_epoch=1, step=step, max_step=8, seconds_per_step=1.0, steps_per_epoch=8)
    os.utime(folder / "status.json", (at, at))
    if ended:
        (folder / "ended.json").write_text("{}")


def account(folder: Path, begin: float, seconds: float) -> None:
    """One start of a run with two workers of four CPUs and a GPU each."""
    folder.mkdir(parents=True, exist_ok=True)
    held = {"attempt": 1, "step": 0, "world_size": 2, "on_cluster": True, "gpus": 2, "cpus": 8}
    for time, line in ((0.0, {"event": RUN}), (0.0, {"event": BEGIN, **held}), (seconds, {"event": END})):
        append_line(folder / FILE, {"time": begin + time, **line})


def test_the_run_that_wrote_last_counts(tmp_path):
    assert last_step(tmp_path) == (0, 0)
    trained(tmp_path / "chain" / "first" / "distill", 8, at=100)
    assert last_step(tmp_path) == (8, 8)
    trained(tmp_path / "chain" / "second" / "distill", 3, at=200)
    assert last_step(tmp_path) == (3, 8)


def test_of_several_students_the_one_that_is_furthest_behind_counts(tmp_path):
    """Their steps are in their folders, and the account of all of them in the folder of the run."""
    node = tmp_path / "students"  # a node may have any name
    account(node / "distill", 0.0, 1.0)
    trained(node / "distill", 0, at=100)
    trained(node / "students" / "small" / "distill", 6, at=100)
    trained(node / "students" / "edge" / "distill", 4, at=99)
    trained(node / "students" / "small" / "evaluate", 0, at=101)
    assert last_step(node) == (4, 8)
    trained(node / "students" / "late" / "distill", 0, at=101)  # added at a resume
    assert last_step(node) == (0, 8)
    trained(node / "students" / "late" / "distill", 5, at=102)
    trained(node / "students" / "wild" / "distill", 2, at=102, ended=True)
    assert last_step(node) == (4, 8)


def test_the_bill_of_a_run_that_has_ended_has_its_teachers_and_its_price(tmp_path):
    folder = tmp_path / "distill"
    account(folder, 1000.0, 10.0)
    entry = NodeEntry("family", "distill")
    add_costs(entry, tmp_path)
    assert (entry.gpu_seconds, entry.cpu_seconds, entry.price) == (20.0, 80.0, None)
    settled = goodput(folder)
    settled.teacher_gpu_seconds, settled.teacher_cpu_seconds, settled.price = 5.0, 3.0, 1.5
    settled.write(folder)
    assert json.loads((folder / "goodput.json").read_text())["price"] == 1.5
    add_costs(entry, tmp_path)
    assert (entry.gpu_seconds, entry.cpu_seconds, entry.price) == (25.0, 83.0, 1.5)
    account(folder, 2000.0, 10.0)  # it has run further since
    assert Goodput.read(folder).wall < goodput(folder).wall
    add_costs(entry, tmp_path)
    assert (entry.gpu_seconds, entry.cpu_seconds, entry.price) == (40.0, 160.0, None)


def test_the_bills_of_several_runs_are_added(tmp_path):
    for name in ("first", "second"):
        account(tmp_path / name / "distill", 1000.0, 10.0)
        settled = goodput(tmp_path / name / "distill")
        settled.price = 1.5
        settled.write(tmp_path / name / "distill")
    entry = NodeEntry("chain", "compress")
    add_costs(entry, tmp_path)
    assert entry.gpu_seconds == pytest.approx(40.0) and entry.price == 3.0
