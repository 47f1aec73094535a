"""One machine, one process: what a run writes, and that breaking it off and going on changes nothing."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from radioplat.cli import main as cli
from radioplat.data.ledger.ledger import Ledger
from radioplat.data.loading.run_data import RunData, dataset_to_json, open_reader
from radioplat.errors import SpecError
from radioplat.launch.preflight.preflight import Level, Preflight
from radioplat.launch.preflight.steps import take_steps
from radioplat.spec.loading.load import load_spec
from radioplat.tasks.inspect.diagnose import diagnose
from radioplat.tracking.results import TaskFolder
from radioplat.tracking.status import read_status
from radioplat.tracking.teacher_cost import TeacherCosts
from radioplat.training.accounting.prove import prove_run
from radioplat.training.checkpoints.checkpoint import verified_state
from radioplat.training.targets import first_pass

EVERY_SECOND = ("train.checkpoint_interval=2", "train.checkpoint_interval_unit=step")


def break_off(folder: Path, into: Path, steps: int) -> list[str]:
    """Copy a run's ``folder`` as a run that died after ``steps`` steps leaves it: overrides that go on from there."""
    copy = into / "run" / "distill"
    shutil.copytree(folder, copy, symlinks=True)
    keep = {2: "model_epoch_000_step_00002", 4: "model_epoch_001", 6: "model_epoch_001_step_00006"}
    for path in TaskFolder(copy.parent, "distill").checkpoints():
        if verified_state(path).global_step > steps:
            shutil.rmtree(path)
    TaskFolder(copy.parent, "distill").point_latest(keep[steps])
    return [f"results_dir={copy.parent}", *EVERY_SECOND]


@pytest.fixture
def broken_off(quiet_run, tmp_path):
    """broken_off(steps) -> :func:`break_off` of the quiet run."""
    return lambda steps: break_off(quiet_run.folder, tmp_path, steps)


@pytest.mark.proof
def test_a_run_goes_on_cut_up_and_offloaded(quiet_run, broken_off, make_spec, distil, tmp_path):
    """Saved at stage 0, gone on with at stage 3 with the optimizer on the host."""
    then = distil(make_spec(tmp_path), *broken_off(6), "train.zero_stage=3", "train.offload=true")
    assert then.result.resumed_from == 6 and sorted(then.losses) == [7, 8]
    for step, loss in then.losses.items():
        assert loss == pytest.approx(quiet_run.losses[step], rel=1e-5), step


def test_results_folder(quiet_run):
    folder = quiet_run.folder
    assert {path.name for path in folder.glob("model_*")} == {
        "model_epoch_000_step_00002",
        "model_epoch_001",
        "model_epoch_001_step_00006",
        "model_epoch_002",
        "model_latest",
    }
    assert (folder / "model_latest").resolve() == quiet_run.result.checkpoint == folder / "model_epoch_002"
    assert (quiet_run.result.global_step, quiet_run.result.resumed_from) == (8, 0)
    for path in TaskFolder(folder.parent, "distill").checkpoints():
        assert verified_state(path) is not None
        assert {f.name for f in path.iterdir()} >= {"student.safetensors", "heads.safetensors", "state.json"}
    state = verified_state(quiet_run.result.checkpoint)
    assert (state.global_step, state.samples_consumed, state.epoch) == (8, 48, 2)


def test_experiment_yaml_is_the_spec_that_ran(quiet_run):
    """With what the run decided for fields that the user's file leaves unset."""
    decided = ["distill.use_mlp=true", "model.backbone.freeze_norm=false", "train.optim.head_warmup_epochs=0.0",
               "train.optim.warmup_epochs=0.1", "train.tf32=true", "train.reduction=fast"]  # fmt: skip
    assert load_spec(quiet_run.folder / "experiment.yaml") == load_spec(quiet_run.file, [*EVERY_SECOND, *decided])


def test_the_users_file_is_untouched(quiet_run, make_spec):
    spec = make_spec(quiet_run.file.parent)
    assert quiet_run.file.read_text() == yaml.safe_dump(spec)


def test_status_lines(quiet_run):
    lines = read_status(quiet_run.folder / "status.json")
    assert all({"date", "time", "status", "verbosity", "message", "kpi"} <= line.keys() for line in lines)
    assert [line["status"] for line in (lines[0], *lines[-2:])] == ["STARTED", "SUCCESS", "SUCCESS"]
    assert {line["status"] for line in lines[1:-2]} == {"RUNNING"}
    assert (
        lines[-1]["message"] == "ledger: 48 samples, each used exactly once"
        and not lines[-1]["kpi"]["run/samples_lost"]
    )
    progress = [line for line in lines if "max_step" in line]
    assert [line["step"] for line in progress] == list(range(1, 9))
    assert [line["epoch"] for line in progress] == [0] * 4 + [1] * 4
    for line in progress:
        assert (line["max_epoch"], line["max_step"]) == (2, 8)
        assert line["time_per_step"] and line["time_per_epoch"] and line["eta"]
        assert {
            "loss",
            "loss/lite0/summary",
            "loss/lite0/spatial",
            "loss/vit/spatial",
            "lr",
            "images_per_s",
            "seconds/teacher/lite0",
            "seconds/teacher/vit",
        } <= line["kpi"].keys()


def test_what_the_teachers_cost(quiet_run):
    lite0, vit = quiet_run.result.teacher_costs.teachers["lite0"], quiet_run.result.teacher_costs.teachers["vit"]
    assert lite0.images == vit.images == 48  # six a step
    # Two bytes a number: lite0's summary of 1280 and its map of 1280 numbers at 2 x 2; vit's map of 64 at 4 x 4.
    assert lite0.bytes == 48 * 2 * (1280 + 2 * 2 * 1280) and vit.bytes == 48 * 2 * 4 * 4 * 64
    assert quiet_run.result.teacher_costs == TeacherCosts.read(quiet_run.folder)
    state = verified_state(quiet_run.result.checkpoint)
    assert state.teacher_cost == {"lite0": dataclasses.asdict(lite0), "vit": dataclasses.asdict(vit)}
    kpis = [line["kpi"] for line in read_status(quiet_run.folder / "status.json") if "max_step" in line]
    assert not any("price" in name for kpi in kpis for name in kpi)  # none was given
    assert kpis[-1].items() >= quiet_run.result.teacher_costs.kpi().items()


def test_loss_falls_and_is_the_sum_of_its_terms(quiet_run):
    assert quiet_run.losses[8] < 0.9 * quiet_run.losses[1]
    for event in (e for e in quiet_run.events if hasattr(e, "metrics")):
        m = event.metrics
        terms = m["loss/lite0/summary"] + m["loss/lite0/spatial"] + m["loss/vit/spatial"]
        assert m["loss"] == pytest.approx(terms, rel=1e-5)


def test_consumed_ids_are_the_orders(quiet_run, ids_by_step):
    spec = load_spec(quiet_run.folder / "experiment.yaml")
    order = RunData.load(quiet_run.folder / "data", spec.dataset.train_dataset).order
    found = ids_by_step(quiet_run.folder)
    assert found == {step: order.slice(6 * step, 6 * step + 6).sample_id.tolist() for step in range(8)}
    proof = prove_run(quiet_run.folder)
    assert proof.holds and (proof.expected, proof.consumed, proof.replayed, proof.attempts) == (48, 48, 0, [(1, 0, 8)])


def test_the_command_that_proves_it(quiet_run, capfd):
    for place in (quiet_run.folder, quiet_run.folder.parent):
        assert cli.main(["ledger", str(place)]) == 0
        out, _ = capfd.readouterr()
        for words in ("expected", "48", "missing", "replayed", "48 expected samples were seen exactly once"):
            assert words in out, words


@pytest.mark.parametrize("fault", ["swap", pytest.param("drop", marks=pytest.mark.proof)])
def test_a_worker_that_swaps_or_drops_a_row_is_found_out(make_spec, distil, monkeypatch, capfd, tmp_path, fault):
    record = Ledger.record

    def faulty(self, step, batch):
        if step == 1 and batch.micro_batch == 4:
            ids = batch.sample_id[::-1].copy() if fault == "swap" else batch.sample_id[1:]
            keep = slice(None) if fault == "swap" else slice(1, None)
            views = {n: dataclasses.replace(v, pixels=v.pixels[keep]) for n, v in batch.views.items()}
            parts = {n: getattr(batch, n)[keep] for n in ("position", "weight", "label")}
            batch = dataclasses.replace(batch, views=views, sample_id=ids, **parts)
        record(self, step, batch)

    monkeypatch.setattr(Ledger, "record", faulty)
    trail = distil(make_spec(tmp_path), "train.max_steps=2")
    assert cli.main(["ledger", str(tmp_path)]) == 1
    out, err = capfd.readouterr()
    wrong = "2 missing, 0 repeated, 2 misplaced" if fault == "swap" else "1 missing, 0 repeated, 0 misplaced"
    assert wrong in err and str(trail.folder) in err and "step 1" in out


@pytest.mark.proof
def test_a_step_of_two_views_of_each_image_is_proven_and_goes_on(make_spec, distil, ids_by_step, tmp_path):
    two = "dataset.train_dataset.views_per_step=2"
    spec = make_spec(tmp_path / "whole")
    whole = distil(spec, two)
    found = ids_by_step(whole.folder)
    assert all(ids[::2] == ids[1::2] and len(set(ids)) == 3 for ids in found.values())
    results = f"results_dir={tmp_path / 'cut'}"
    distil(spec, two, results, "train.max_steps=3")
    distil(spec, two, results)
    assert ids_by_step(tmp_path / "cut" / "distill") == found and prove_run(tmp_path / "cut" / "distill").holds


def test_nothing_to_prove(capfd, tmp_path):
    assert cli.main(["ledger", str(tmp_path)]) == 1
    assert "no ledger here" in capfd.readouterr().err


def test_going_on_equals_not_stopping(quiet_run, broken_off, distil, ids_by_step, student_tensors):
    steps = 2
    again = distil(quiet_run.file, *broken_off(steps))
    assert again.result.resumed_from == steps
    assert sorted(again.losses) == list(range(steps + 1, 9))
    for step, loss in again.losses.items():
        assert loss == pytest.approx(quiet_run.losses[step], rel=1e-6), step
    assert ids_by_step(again.folder) == ids_by_step(quiet_run.folder)
    at_break = verified_state(quiet_run.folder / "model_epoch_000_step_00002").teacher_cost
    for name, cost in quiet_run.result.teacher_costs.teachers.items():
        found = again.result.teacher_costs.teachers[name]
        assert at_break[name]["images"] == 12 and (found.images, found.bytes) == (cost.images, cost.bytes)
        assert found.seconds > at_break[name]["seconds"] > 0
    proof = prove_run(again.folder)
    assert proof.holds and proof.replayed == 6 * (8 - steps) and proof.attempts == [(1, 0, steps), (2, steps, 8)]
    mine, theirs = student_tensors(again.result.checkpoint), student_tensors(quiet_run.result.checkpoint)
    assert mine.keys() == theirs.keys()
    for name, value in theirs.items():
        torch.testing.assert_close(mine[name], value, rtol=1e-5, atol=1e-7, msg=name)


@pytest.mark.proof
def test_the_same_run_twice_is_the_same_run(quiet_run, distil, tmp_path):
    prices = ("cluster.cpu_hour_price=0.36", "cluster.gpu_hour_price=100")
    again = distil(quiet_run.file, f"results_dir={tmp_path}", "train.max_steps=8", *prices)
    assert again.losses == quiet_run.losses
    # Only the CPU costs anything: half a core (num_cpus: 0.5) at 0.0001 a second; a GPU has a price, but there is none.
    kpis = [line["kpi"] for line in read_status(again.folder / "status.json") if "max_step" in line]
    for name, cost in again.result.teacher_costs.teachers.items():
        assert cost.seconds == pytest.approx(sum(kpi[f"seconds/teacher/{name}"] for kpi in kpis))
        assert cost.cpu_seconds == pytest.approx(cost.seconds / 2) and cost.gpu_seconds == 0
        assert kpis[-1][f"cost/{name}/price_per_1000_images"] == pytest.approx(cost.seconds / 2 * 1e-4 / 48 * 1000)
        assert 0 < kpis[-1][f"cost/{name}/busy"] <= 1


def test_one_line_says_what_goes_on_and_what_changed(quiet_run, broken_off, distil):
    again = distil(quiet_run.file, *broken_off(4), "train.optim.weight_decay=0.02")
    line = again.lines[0]
    assert "\n" not in line
    assert f"{again.folder}: goes on from model_epoch_001 at step 4 of 8" in line
    assert "train.optim.weight_decay: 0.01 -> 0.02" in line
    assert any(line == entry["message"] for entry in read_status(again.folder / "status.json"))


def test_a_fresh_run_says_so(quiet_run):
    assert quiet_run.lines[0] == f"{quiet_run.folder}: starts fresh, it holds no checkpoint"
    assert any("no GPU" in line and "one CPU worker" in line for line in quiet_run.lines)


def test_a_finished_run_has_nothing_to_do(quiet_run, distil, tmp_path):
    shutil.copytree(quiet_run.folder, tmp_path / "distill", symlinks=True)
    before = (tmp_path / "distill" / "experiment.yaml").read_text()
    again = distil(quiet_run.file, f"results_dir={tmp_path}", "train.optim.weight_decay=0.02", *EVERY_SECOND)
    assert "nothing is left to do" in again.lines[0] and not again.events
    assert "weight_decay: 0.01 -> 0.02; to train with these, name another results_dir" in again.lines[0]
    assert (tmp_path / "distill" / "experiment.yaml").read_text() == before, "the spec that the weights are from"
    assert again.result.checkpoint.name == "model_epoch_002" and again.result.global_step == 8


ORDER = ["dataset.train_dataset.seed=7", "train.global_batch_size=8"]


@pytest.mark.parametrize(
    "change, field",
    [
        each if each[0] in ORDER else pytest.param(*each, marks=pytest.mark.proof)
        for each in (
            ("dataset.train_dataset.seed=7", "dataset.train_dataset.seed"),
            ("dataset.train_dataset.native_resolution_filter.min_short_side=1", "native_resolution_filter"),
            ("dataset.train_dataset.tar_data_sources[0].scale_factor=3", "scale_factor"),
            ("dataset.train_dataset.data_weight_mode=inv_frequency", "data_weight_mode"),
            ("dataset.max_pixels=1000000", "dataset.max_pixels"),
            ("train.global_batch_size=8", "train.global_batch_size"),
            ("dataset.train_dataset.views_per_step=2", "dataset.train_dataset.views_per_step"),
        )
    ],
)
def test_another_order_is_refused(quiet_run, broken_off, distil, change, field):
    overrides = broken_off(4)
    results = Path(overrides[0].partition("=")[2])
    files = [path for name in ("data", "ledger") for path in results.glob(f"distill/{name}/**/*")]
    kept = {path: path.stat().st_mtime_ns for path in files}
    before = diagnose(results)
    assert before.cause.startswith("no failure: ")
    with pytest.raises(SpecError, match="another order of samples") as caught:
        distil(quiet_run.file, *overrides, change)
    assert field in str(caught.value) and "train.restart_order=true" in str(caught.value)
    # Whoever follows the file learns that this start failed.
    last = read_status(results / "distill" / "status.json")[-1]
    assert last["status"] == "FAILURE" and last["message"].startswith("distill cannot start: ")
    assert diagnose(results) == before, "the run itself is as it was"
    assert load_spec(results / "distill" / "experiment.yaml").dataset == load_spec(quiet_run.file).dataset
    assert kept and kept == {path: path.stat().st_mtime_ns for path in kept}, "what the earlier run is proven by"


@pytest.mark.proof
def test_a_refused_change_undone_goes_on(quiet_run, broken_off, distil):
    overrides = broken_off(6)
    with pytest.raises(SpecError):
        distil(quiet_run.file, *overrides, "dataset.train_dataset.tar_data_sources[1].scale_factor=5")
    again = distil(quiet_run.file, *overrides)
    assert again.losses == pytest.approx({s: quiet_run.losses[s] for s in (7, 8)}, rel=1e-6)


@pytest.mark.proof
def test_another_order_is_accepted_when_asked_for(quiet_run, broken_off, distil, ids_by_step):
    again = distil(quiet_run.file, *broken_off(4), "dataset.train_dataset.seed=7", "train.restart_order=true")
    assert again.result.resumed_from == 4 and again.result.global_step == 8
    found, before = ids_by_step(again.folder), ids_by_step(quiet_run.folder)
    assert [found[s] for s in range(4)] == [before[s] for s in range(4)]
    assert [found[s] for s in range(4, 8)] != [before[s] for s in range(4, 8)]
    proof = prove_run(again.folder)
    assert proof.holds and (proof.first_step, proof.expected, proof.before, proof.replayed) == (4, 24, 24, 24)


@pytest.mark.proof
def test_statistics_are_the_same_whether_their_batches_are_kept_or_read_again(make_spec, distil, monkeypatch, tmp_path):
    def run(name: str):
        spec = make_spec(tmp_path / name)
        spec["distill"]["target_norm"] = {"type": "standardize", "fit_batches": 3}
        return distil(spec, "train.max_steps=4")

    kept = run("kept")
    monkeypatch.setattr(first_pass, "KEPT_BYTES", 0)
    again = run("again")
    assert len(kept.losses) == 4 and kept.losses == again.losses
    assert prove_run(kept.folder).holds and prove_run(again.folder).holds
    # What is read again is asked for again, and paid for again: three batches of six.
    images = [[cost.images for cost in trail.result.teacher_costs.teachers.values()] for trail in (kept, again)]
    assert images == [[24, 24], [42, 42]]


@pytest.mark.proof
def test_a_torn_checkpoint_is_passed_over(quiet_run, broken_off, distil):
    overrides = broken_off(4)
    torn = Path(overrides[0].partition("=")[2]) / "distill" / "model_epoch_001" / "heads.safetensors"
    torn.write_bytes(torn.read_bytes()[:-100])
    again = distil(quiet_run.file, *overrides)
    assert again.result.resumed_from == 2
    assert again.losses[8] == pytest.approx(quiet_run.losses[8], rel=1e-5)
    assert verified_state(again.folder / "model_epoch_001") is not None  # written anew on the way


@pytest.mark.proof
def test_from_a_named_checkpoint(quiet_run, distil, tmp_path, ids_by_step):
    start = quiet_run.folder / "model_epoch_001"
    again = distil(quiet_run.file, f"results_dir={tmp_path}", f"train.resume_training_checkpoint_path={start}")
    assert again.result.resumed_from == 4 and str(start) in again.lines[0]
    assert again.losses == pytest.approx({s: quiet_run.losses[s] for s in range(5, 9)}, rel=1e-6)
    assert sorted(ids_by_step(again.folder)) == [4, 5, 6, 7]
    proof = prove_run(again.folder)
    assert proof.holds and (proof.first_step, proof.expected) == (4, 24)


def test_a_named_checkpoint_of_another_order_is_refused(quiet_run, distil, tmp_path):
    start = quiet_run.folder / "model_epoch_001"
    with pytest.raises(SpecError, match="dataset.train_dataset.seed"):
        distil(
            quiet_run.file,
            f"results_dir={tmp_path}",
            f"train.resume_training_checkpoint_path={start}",
            "dataset.train_dataset.seed=7",
        )


def test_drawn_sizes_and_every_augmentation_train_and_go_on_as_they_were(make_spec, distil, tmp_path):
    changes = {
        "dataset": {
            "augmentation": {
                "random_rotate": {"enable": True, "angle_list": [90, 20]},
                "random_color": {"enable": True},
                "random_erase": {"enable": True},
                "random_aug": {"enable": True},
                "with_scale_random_crop": {"enable": True},
                "with_random_blur": True,
            }
        },
    }
    spec = make_spec(tmp_path / "whole", changes)
    spec["distill"]["teacher"][0]["stochastic_resolutions"] = {48: 0.3, 64: 0.3, 96: 0.4}
    whole = distil(spec, *EVERY_SECOND, "train.max_steps=4")
    assert all(np.isfinite(loss) for loss in whole.losses.values()) and len(whole.losses) == 4
    views = (("matched", 96, 1, ((48, 0.3), (64, 0.3), (96, 0.4))),)
    reader = open_reader(str(whole.folder / "data"), dataset_to_json(load_spec(spec).dataset), views)
    shapes = {reader.read(micro_batch).views["matched"].pixels.shape for micro_batch in range(24)}
    assert shapes == {(2, 3, side, side) for side in (48, 64, 96)}
    again = distil(spec, *break_off(whole.folder, tmp_path / "broken", 2), "train.max_steps=4")
    assert again.result.resumed_from == 2 and sorted(again.losses) == [3, 4]
    for step, loss in again.losses.items():
        assert loss == pytest.approx(whole.losses[step], rel=1e-6), step


@pytest.mark.proof
def test_average_and_warm_up_follow_the_length_of_the_run(make_spec, distil, tmp_path):
    """Over a tenth of it, and a twentieth; a run that has begun keeps its own, and what the spec says stays."""

    def decided(folder: Path, *overrides: str) -> tuple[float | None, float | None]:
        spec = load_spec(make_spec(tmp_path / "run"), ("train.num_epochs=100", *overrides))
        train = take_steps(Preflight(spec, "distill", folder, Level.data)).spec.train
        return train.ema_decay, train.optim.warmup_epochs

    ema = "train.enable_ema=true"
    assert decided(tmp_path / "none", ema) == (pytest.approx(1 - 1 / 40), 5)  # of 400 steps and 100 epochs
    assert decided(tmp_path / "none", ema, "train.ema_decay=0.5", "train.optim.warmup_epochs=0") == (0.5, 0)
    assert decided(tmp_path / "none") == (None, 5)
    assert decided(tmp_path / "none", "train.optim.policy=soft_start_annealing") == (None, 0)
    assert decided(tmp_path / "none", "train.optim.optim=sgd") == (None, 0)
    begun = distil(make_spec(tmp_path / "run"), ema, "train.max_steps=2")
    written = load_spec(begun.folder / "experiment.yaml").train
    assert written.ema_decay == pytest.approx(0.9) and written.optim.warmup_epochs == 0.025  # of half an epoch
    assert decided(begun.folder, ema) == (pytest.approx(0.9), 0.025)
