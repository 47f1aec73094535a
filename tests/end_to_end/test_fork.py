"""Arms of a fork begin with one step's weights and see the same samples; the run they come from stays as it was."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest

from benchmarks.ledger_rows import read_consumed
from radioplat.cli import main as cli
from radioplat.cli.parser import build_parser
from radioplat.errors import DataError, RadioplatError, SpecError
from radioplat.models.vision_model import open_architecture
from radioplat.tasks.fork.arms import UNCHANGED, arms_of
from radioplat.tasks.fork.fork import fork
from radioplat.tasks.fork.report import arms_curves, arms_tables
from radioplat.tasks.fork.show import show
from radioplat.tasks.replay.replay import replay
from radioplat.tasks.shared.run_folder import going_on_line
from radioplat.tracking.report.curves import group_curves
from radioplat.tracking.status import read_status
from radioplat.tracking.teacher_cost import TeacherCosts

from .test_replay import content


def losses(folder) -> dict[int, float]:
    """The losses of an arm's steps, as it wrote them."""
    lines = [line for line in read_status(folder / "distill" / "status.json") if "loss" in line.get("kpi", {})]
    return {line["step"]: line["kpi"]["loss"] for line in lines}


def ids(ledger) -> list[tuple[int, int, int]]:
    """Step, position and sample of each row of a ledger, from step 4 on."""
    rows = read_consumed(ledger).to_pylist()
    return sorted((row["step"], row["position"], row["id"]) for row in rows if row["step"] >= 4)


@pytest.fixture(scope="module")
def forked(quiet_run, tmp_path_factory):
    """A fork at the checkpoint of step 4: a rate ten times as high, no vit, and a change that has no effect."""
    before = content(quiet_run.folder)
    out = tmp_path_factory.mktemp("fork")
    arms = [["train.optim.lr=0.01"], ["without=vit"], ["train.hang_timeout_s=1234"]]
    result = fork(quiet_run.folder, 4, arms=arms, out=out)
    assert content(quiet_run.folder) == before
    return result


def test_the_arm_that_changes_nothing_is_the_run(forked, quiet_run):
    assert [arm.name for arm in forked.arms] == [UNCHANGED, "optim.lr=0.01", "without=vit", "train.hang_timeout_s=1234"]
    run = {step: loss for step, loss in quiet_run.losses.items() if step > 4}
    assert losses(forked.folder / UNCHANGED) == run
    other = losses(forked.folder / "optim.lr=0.01")
    assert other[5] == run[5] and other[6] != run[6]  # the fifth step begins with the same weights


def test_all_arms_see_the_samples_of_the_run(forked, quiet_run):
    wanted = ids(quiet_run.folder / "ledger")
    assert len(wanted) == 24
    for arm in forked.arms:
        assert ids(forked.folder / arm.name / "distill" / "ledger") == wanted


def test_an_arm_without_a_teacher_has_no_head_for_it_and_is_compared(forked):
    names = [head.name for head in open_architecture(forked.arms[2].student).heads]
    assert names == ["lite0"]
    assert all("knn" in arm.figures for arm in forked.arms)
    assert forked.arms[0].knn_gain is None
    for arm in forked.arms[1:]:
        assert arm.knn_gain.low <= arm.knn_gain.difference <= arm.knn_gain.high
        assert arm.knn_gain.difference == pytest.approx(arm.figures["knn"] - forked.arms[0].figures["knn"])
    written = json.loads((forked.folder / "results.json").read_text())
    assert [arm["name"] for arm in written["arms"]] == [arm.name for arm in forked.arms]
    assert forked.evaluation is not None and forked.evaluation.exists()


def test_an_arm_has_hours_and_a_gain_an_hour_since_the_step(forked):
    """There is no GPU in the tests' runs, so hours are those of CPUs; or there is one, and they are its."""
    written = json.loads((forked.folder / "results.json").read_text())
    assert written["unit"] == f"{forked.unit}-hours" and written["start_figures"] == forked.start_figures
    for arm, row in zip(forked.arms, written["arms"], strict=True):
        held = arm.gpu_seconds if forked.unit == "GPU" else arm.cpu_seconds
        assert 0 < arm.seconds <= arm.cpu_seconds and row["hours"] == held / 3600
        gained = arm.figures["knn"] - forked.start_figures["knn"]
        assert row["gain_per_hour"] == pytest.approx(gained / row["hours"]) == forked.gain_per_hour(arm)
        costs = TeacherCosts.read(arm.student.parent).teachers
        assert {cost.images for cost in costs.values()} == {24}  # what they did before the fork is not its
    # The step itself is evaluated with the arms: its checkpoint has both teachers' heads.
    assert {"knn", "fidelity/lite0/summary", "fidelity/vit/spatial"} <= set(forked.start_figures)


def test_the_report_has_each_loss_of_all_arms_on_one_axis(forked):
    charts = group_curves(arms_curves(forked.arms))
    assert list(charts)[0] == "loss" and set(charts["loss"]) == {arm.name for arm in forked.arms}
    names = {UNCHANGED, "optim.lr=0.01", "train.hang_timeout_s=1234"}
    assert set(charts["loss, teacher vit spatial"]) == names  # the third arm does not have this teacher
    assert set(charts["loss, teacher lite0 summary"]) == {*names, "without=vit"}
    assert dict(charts["loss"][UNCHANGED]) == losses(forked.folder / UNCHANGED)
    arms, fidelity = arms_tables(forked)
    for table in (arms, fidelity):
        assert [row[0] for row in table.rows] == ["step 4", *(arm.name for arm in forked.arms)]
    assert arms.columns[-2:] == [f"{forked.unit}-hours", f"a {forked.unit}-hour"] and "gain" in arms.columns
    assert fidelity.columns == ["arm", "lite0 spatial", "lite0 summary", "vit spatial"]
    assert fidelity.rows[3][3] is None  # without=vit
    page = forked.report.read_text()
    assert forked.report == forked.folder / "report.html" and page.count("data:image/png") >= len(charts)
    assert all(text in page for text in ("train.optim.lr=0.01", "loss, teacher vit spatial", str(forked.evaluation)))


def test_the_same_command_repeats_nothing_and_another_step_is_refused(forked, quiet_run, capsys):
    before = content(forked.folder / UNCHANGED / "distill" / "ledger")
    arms = ["--arm", "train.optim.lr=0.01", "--arm", "without=vit", "--arm", "train.hang_timeout_s=1234"]
    words = ["fork", str(quiet_run.folder), "--at", "4", *arms]
    assert cli.main([*words, "--out", str(forked.folder)]) == 0
    printed = capsys.readouterr().out
    assert "nothing is left to do" in printed and "Arms from step 4" in printed
    assert content(forked.folder / UNCHANGED / "distill" / "ledger") == before
    with pytest.raises(RadioplatError, match="it has arms of step 4"):
        fork(quiet_run.folder, 6, arms=[["train.optim.lr=0.01"]], out=forked.folder)


def test_a_step_without_a_checkpoint_is_computed_once(quiet_run, tmp_path):
    lines: list[str] = []
    result = fork(quiet_run.folder, 5, control=False, out=tmp_path / "fork", say=lines.append)
    assert lines[0] == "no checkpoint has 5 steps: computing 1 from step 4" and result.start.parents[1].name == "start"
    run = {step: loss for step, loss in quiet_run.losses.items() if step > 5}
    assert losses(tmp_path / "fork" / UNCHANGED) == run
    again: list[str] = []
    fork(quiet_run.folder, 5, control=False, out=tmp_path / "fork", say=again.append)
    assert "no checkpoint" not in again[0]


def test_an_arm_whose_changes_have_no_effect_is_named(forked, capsys):
    assert [arm.same_as for arm in forked.arms] == ["", "", "", UNCHANGED]
    show(forked)
    assert f"its weights are those of {UNCHANGED}" in capsys.readouterr().out


def test_an_arm_is_replayed_like_any_run(forked, tmp_path):
    """Its first steps begin from the checkpoint of the run that was forked; earlier ones are that run's."""
    arm = forked.folder / "optim.lr=0.01"
    again = replay(arm, 5)
    assert again.is_same and again.difference == 0 and again.from_checkpoint == forked.start and again.steps == 1
    with pytest.raises(DataError, match="the run began with step 5, from another run's checkpoint") as caught:
        replay(arm, 4)
    assert str(forked.start) in caught.value.problems[0].hint
    copy = tmp_path / "copy" / "distill"
    shutil.copytree(arm / "distill", copy, symlinks=True)
    spec = copy / "experiment.yaml"
    spec.write_text(spec.read_text().replace(str(forked.start), str(tmp_path / "nowhere")))
    with pytest.raises(DataError, match="which is not there"):
        replay(copy, 5)


@pytest.mark.proof
def test_an_arm_is_forked_like_any_run(forked, tmp_path):
    arm = forked.folder / "optim.lr=0.01"
    result = fork(arm, 6, ["train.optim.lr=0.02"], out=tmp_path / "again")
    run = {step: loss for step, loss in losses(arm).items() if step > 6}
    assert losses(result.folder / UNCHANGED) == run and len(run) == 2


def test_what_no_arm_may_change(quiet_run, tmp_path):
    def refused(*changes: str):
        with pytest.raises(SpecError) as caught:
            fork(quiet_run.folder, 4, changes, out=tmp_path / "fork", control=False)
        shutil.rmtree(tmp_path / "fork", ignore_errors=True)
        return caught.value.problems[0]

    assert "train.global_batch_size" in str(refused("train.global_batch_size=12", "dataset.batch_size=4"))
    assert "seed" in str(refused("dataset.train_dataset.seed=99"))
    assert refused("results_dir=/elsewhere").where == "results_dir"
    assert "the same images" in refused("dataset.train_dataset.seed=99", "train.restart_order=true").hint
    assert "lite0, vit" in refused("without=nobody").hint


@pytest.fixture
def going_on(quiet_run, tmp_path):
    """A copy of the run whose lease another process holds; it ends with the test."""
    folder = tmp_path / "run" / "distill"
    shutil.copytree(quiet_run.folder, folder, symlinks=True)
    code = (
        "import sys, time; from pathlib import Path; from radioplat.tracking.lease import Lease\n"
        "with Lease(Path(sys.argv[1]), print): print('held', flush=True); time.sleep(3600)"
    )
    command = [sys.executable, "-c", code, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        yield folder, holder
        holder.kill()


def test_a_run_that_is_going_on_is_forked_and_replayed_up_to_its_newest_checkpoint(going_on, quiet_run, tmp_path):
    """Its retention removes the checkpoint between two arms: they begin alike nevertheless."""
    folder, holder = going_on
    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(line)
        if line.startswith("optim.lr=0.01: "):  # the second arm is about to begin
            shutil.rmtree(folder / "model_epoch_001", ignore_errors=True)

    result = fork(folder, 4, ["train.optim.lr=0.01"], out=tmp_path / "fork", say=say)
    named = f"{folder} is going on: process {holder.pid} on "
    assert lines[0].startswith(named) and "Steps up to 8, that of its newest checkpoint model_epoch_002" in lines[0]
    run = {step: loss for step, loss in quiet_run.losses.items() if step > 4}
    assert losses(tmp_path / "fork" / UNCHANGED) == run
    other = losses(tmp_path / "fork" / "optim.lr=0.01")
    assert other[5] == run[5] and other[6] != run[6]
    assert result.start == tmp_path / "fork" / "start" / "distill" / "model_epoch_001" and result.start_figures
    again: list[str] = []
    assert replay(folder, 5, say=again.append).is_same and again[0].startswith(named)
    with pytest.raises(DataError) as caught:
        fork(folder, 9, ["train.optim.lr=0.01"], out=tmp_path / "later")
    hint = caught.value.problems[0].hint
    assert hint.startswith("Give a step from 1 to 8") and f"the run is going on (process {holder.pid} on " in hint
    holder.kill()  # its lease.json stays, and says whose it was
    holder.wait()
    assert (folder / "lease.json").exists() and going_on_line(folder) == ""
    lines.clear()
    assert replay(folder, 7, say=lines.append).is_same
    assert lines and not any("going on" in line for line in lines)


def test_an_arm_of_the_same_name_and_other_changes_is_refused(forked, quiet_run, tmp_path):
    """Its finished weights would pass for those of this call."""
    before = content(forked.folder)
    with pytest.raises(RadioplatError, match="its arm optim.lr=0.01 has the changes train.optim.lr=0.01, not train.h"):
        fork(quiet_run.folder, 4, ["train.hang_timeout_s=99"], [["train.optim.lr=0.01"]], out=forked.folder)
    assert content(forked.folder) == before
    with pytest.raises(RadioplatError) as caught:
        fork(quiet_run.folder, 77, out=tmp_path / "other", control=False, changes=["train.optim.lr=0.01"])
    assert caught.value.problems[0].where == "--at"


def test_arms_that_differ_in_nothing_are_refused():
    with pytest.raises(SpecError, match="the same changes"):
        arms_of([], [["a=1"], ["a=1"]], control=False)
    with pytest.raises(SpecError, match="the same changes: none"):
        arms_of([], [], control=True)
    names = [arm.name for arm in arms_of([], [["train.optim.lr=1"], ["train.optim.lr=2"]], control=True)]
    assert names == [UNCHANGED, "optim.lr=1", "optim.lr=2"]


def test_changes_of_all_arms_stand_behind_the_step():
    words = ["fork", "results/run", "--at", "7", "a=1", "b=2", "--arm", "c=3", "d=4", "--arm", "e=5", "--out", "x"]
    given = build_parser("radioplat").parse_args(words)
    assert (given.results, given.at, given.overrides, given.out) == ("results/run", 7, ["a=1", "b=2"], "x")
    assert given.arm == [["c=3", "d=4"], ["e=5"]] and given.control
