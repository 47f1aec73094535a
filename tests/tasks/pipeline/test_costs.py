"""The bill of a node, read from the records of its runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from radioplat.tasks.pipeline.costs import add_costs
from radioplat.tasks.pipeline.record import NodeEntry
from radioplat.tracking.attempts.goodput import BEGIN, END, FILE, RUN, Goodput, goodput
from radioplat.tracking.json_lines import append_line


def account(folder: Path, begin: float, seconds: float) -> None:
    """One start of a run with two workers of four CPUs and a GPU each."""
    folder.mkdir(parents=True, exist_ok=True)
    held = {"attempt": 1, "step": 0, "world_size": 2, "on_cluster": True, "gpus": 2, "cpus": 8}
    for time, line in ((0.0, {"event": RUN}), (0.0, {"event": BEGIN, **held}), (seconds, {"event": END})):
        append_line(folder / FILE, {"time": begin + time, **line})


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
