"""The tutorials of the time machine, played command by command: they print what they show."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks.judges.first_hour import played
from radioplat.tracking.status import read_status

ROOT = Path(__file__).parents[2]
JUMP, BUY = (f"docs/tutorials/{name}.md" for name in ("why_did_a_step_jump", "what_did_this_teacher_buy"))


def shown(page: str, pattern: str) -> list[tuple[str, ...]]:
    """The groups of a pattern, wherever a page has it."""
    return [each.groups() for each in re.finditer(pattern, (ROOT / page).read_text(encoding="utf-8"), re.M)]


def play(home: Path, page: str) -> Path:
    """Take the steps of a page in a folder that looks like a checkout; return it."""
    folder = home / "checkout"
    folder.mkdir()
    for name in ("radioplat", "docs", "specs", "jobs", "clusters", "tune_spaces"):
        (folder / name).symlink_to(ROOT / name)
    result = played(folder, [page])
    assert result.failed == [] and result.not_printed == [] and result.left_out == {}
    return folder


@pytest.mark.proof
@pytest.mark.timeout(1500)
def test_why_did_a_step_jump(tmp_path):
    folder = play(tmp_path, JUMP)
    lines = read_status(folder / "results" / "jump" / "distill" / "status.json")
    losses = {line["step"]: line["kpi"]["loss"] for line in lines if "loss" in line.get("kpi", {})}
    ((printed,),) = shown(JUMP, r"^\{(28: .*)\}$")
    page = {int(step): float(loss) for step, loss in (pair.split(": ") for pair in printed.split(", "))}
    # Another CPU adds up in another order.
    assert {step: losses[step] for step in page} == pytest.approx(page, rel=0.03)
    assert min(losses[33], losses[34]) > 1.2 * max(losses[step] for step in (31, 32, 35, 36))
    facts = json.loads((folder / "step_33" / "step.json").read_text())
    first = shown(JUMP, r"^([\d.]+)% (part-05\.tar) (\w+)$")
    assert len(first) == 4 and {sample["shard"] for sample in facts["samples"]} == {"part-05.tar"}
    largest = [sample["key"] for sample in facts["samples"][:6]]  # near ones may change places on another CPU
    assert {key for _, _, key in first} <= set(largest)
    assert facts["recorded"] == facts["replayed"] and facts["recorded"]["loss"] == losses[33]


@pytest.mark.proof
@pytest.mark.timeout(1500)
def test_what_did_this_teacher_buy(tmp_path):
    folder = play(tmp_path, BUY)
    results = json.loads((folder / "buys" / "results.json").read_text())
    arms = {arm["name"]: arm for arm in results["arms"]}
    start = {"figures": results["start_figures"]}
    rows = shown(BUY, r"^│ (step 120|unchanged|without=\w+) +│ +(?:–|120) │ +\S+ │ +(\d\d\.\d) │ +(\S+) │")
    assert [name for name, *_ in rows] == ["step 120", *arms]
    for name, knn, gain in rows:
        arm = arms.get(name, start)
        # Each image is 0.23 points; another CPU adds up in another order.
        assert 100 * arm["figures"]["knn"] == pytest.approx(float(knn), abs=3)
        if gain != "–":
            assert 100 * arm["knn_gain"]["difference"] == pytest.approx(float(gain), abs=3)
            assert arm["knn_gain"]["low"] < 0 < arm["knn_gain"]["high"]  # as the page says
    for arm in arms.values():
        assert arm["gain_per_hour"] == pytest.approx(
            (arm["figures"]["knn"] - results["start_figures"]["knn"]) / arm["hours"]
        )
    weights = [
        (path / "model_latest" / "student.safetensors").read_bytes()
        for path in (folder / "results" / "two" / "distill", folder / "buys" / "unchanged" / "distill")
    ]
    assert weights[0] == weights[1]
