"""The whole quickstart, with few steps: its files, what it says, and a second call."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys

import pytest

from radioplat.quickstart.tour import FITTED, INT8, START, STUDENT, TEACHER

pytestmark = [pytest.mark.proof, pytest.mark.ray, pytest.mark.timeout(1200)]
FEW = ("train.num_epochs=1", "prune.reconstruction_images=64", "evaluate.max_images=100")
LEFT = (
    "weights/tf_efficientnet_lite0.safetensors",
    "prune/model_pruned/student.safetensors",
    "distill/model_latest/student.safetensors",
    "engines/teacher_lite0.engine",
    "engines/student.engine",
    "engines/student_int8.engine",
    "gen_trt_engine/student.engine",
    "side_by_side/report.html",
    "side_by_side/results.json",
)


def test_few_steps_end_in_an_engine_and_a_report_and_a_second_call_repeats_nothing(tmp_path, ray_environment):
    def call() -> tuple[str, dict[str, int]]:
        command = [sys.executable, "-m", "radioplat.cli", "quickstart", f"results_dir={tmp_path}", *FEW]
        done = subprocess.run(command, env=ray_environment, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout, {name: (tmp_path / name).stat().st_mtime_ns for name in LEFT}

    first, written = call()
    page = (tmp_path / "side_by_side" / "report.html").read_text(encoding="utf-8")
    (shown,) = map(html.unescape, re.findall(r'<p class="headline">(.*?)</p>', page))
    assert re.match(r"With 49% of its teacher's multiply-accumulates the student keeps \d+% of", shown)
    assert shown in " ".join(first.split())
    rows = json.loads((tmp_path / "side_by_side" / "results.json").read_text(encoding="utf-8"))["models"]
    assert [row["name"] for row in rows] == [TEACHER, START, FITTED, STUDENT, INT8] and all(row["knn"] for row in rows)
    for task in ("distill", "quantize", "export", "gen_trt_engine", "side_by_side"):
        assert list((tmp_path / task / "wandb").glob("offline-run-*/*.wandb")), task

    second, later = call()
    assert later == written and second.count("    complete") == 6 and first.count("    complete") == 0
    table = first[first.index("With 49%") : first.index("everything took")]
    assert table in second
