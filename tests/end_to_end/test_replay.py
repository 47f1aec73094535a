"""A step of a run is computed again, bit for bit, from a folder that stays as it was."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch

from radioplat.cli import main as cli
from radioplat.errors import DataError, RadioplatError, TrainingError
from radioplat.tasks.replay.replay import replay
from radioplat.tasks.replay.show import show
from radioplat.tracking.status import read_status
from radioplat.training.hooks.step_hook import StepHook
from radioplat.training.hooks.step_record import CONTINUE, StepDecision

from .conftest import crops

EVERY_SECOND = ("train.checkpoint_interval=2", "train.checkpoint_interval_unit=step")
POISONED = 5  # of 17 shards, the last of a pass with the seed that a spec has by default


def content(folder: Path) -> dict[str, str]:
    """The hash of each file in a folder."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.parametrize(
    ("step", "begin"),
    [(1, 0), pytest.param(4, 2, marks=pytest.mark.proof), (5, 4), pytest.param(8, 6, marks=pytest.mark.proof)],
)
def test_a_step_is_the_recorded_one_and_the_folder_stays_as_it_was(quiet_run, step, begin):
    before = content(quiet_run.folder)
    again = replay(quiet_run.folder.parent, step)
    assert again.recorded["loss"] == quiet_run.losses[step] and len(again.recorded) > 2
    assert again.replayed == again.recorded and again.difference == 0
    assert again.ids_equal == again.pixels_equal == 1 and again.is_same
    assert again.steps == step - begin and (again.from_checkpoint is None) == (begin == 0)
    assert content(quiet_run.folder) == before


def test_what_is_written_of_a_step_is_read_by_numpy_and_adds_up_to_its_loss(quiet_run, tmp_path, capsys):
    folder = tmp_path / "seen"
    assert cli.main(["replay", str(quiet_run.folder), "--step", "5", "--dump", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert "bit for bit" in printed and str(folder / "step.html") in printed
    facts = json.loads((folder / "step.json").read_text())
    losses = [sample["loss"] for sample in facts["samples"]]
    assert len(losses) == 6 and losses == sorted(losses, reverse=True)
    assert sum(losses) == pytest.approx(quiet_run.losses[5], rel=1e-5)
    assert all(sum(each["terms"].values()) == pytest.approx(each["loss"]) for each in facts["samples"])
    micro_batches = sorted(folder.glob("micro_batch_*.npz"))
    assert len(micro_batches) == 3
    with np.load(micro_batches[0]) as file:
        names = set(file.files)
        assert file["sample_id"].shape == (2,) and any(name.startswith("target/") for name in names)
        views = [file[name] for name in names if name.startswith("view/")]
        assert views and all(view.dtype == np.uint8 and view.shape[:2] == (2, 3) for view in views)
    assert len(facts["gradients"]) > 5 and all(norm >= 0 for norm in facts["gradients"].values())
    assert any(norm > 0 for norm in facts["gradients"].values())
    page = (folder / "step.html").read_text()
    assert page.count("data:image/png") >= 6 and "shard-00" in page
    assert sorted(path.name for path in tmp_path.iterdir()) == ["seen"]  # nothing is left beside it
    replay(quiet_run.folder, 3, micro_batch=1, out=folder)  # one micro-batch of another step replaces them
    assert [path.name for path in folder.glob("*.npz")] == ["micro_batch_0001.npz"]


def test_a_checkpoint_that_is_gone_or_damaged_is_replaced_by_the_one_before(quiet_run, tmp_path):
    copy = tmp_path / "run" / "distill"
    shutil.copytree(quiet_run.folder, copy, symlinks=True)
    (copy / "model_epoch_001_step_00006" / "student.safetensors").unlink()
    lines: list[str] = []
    again = replay(copy, 8, say=lines.append)
    assert again.is_same and again.steps == 4 and again.from_checkpoint.name == "model_epoch_001"
    assert "computing 4 steps from step 4 (model_epoch_001)" in lines[0]


def test_steps_that_there_are_not(quiet_run, tmp_path):
    for step in (0, 9, -3):
        with pytest.raises(DataError, match="Give a step from 1 to 8"):
            replay(quiet_run.folder, step)
    with pytest.raises(DataError, match="no run has started here"):
        replay(tmp_path, 1)
    with pytest.raises(RadioplatError, match="from 0 to 2"):
        replay(quiet_run.folder, 1, micro_batch=3)


def test_a_step_whose_run_had_other_workers_since_the_checkpoint(quiet_run, distil, tmp_path):
    """A run in two starts, without the checkpoint between them; the first start is said to have had two workers."""
    folder = tmp_path / "run" / "distill"
    shutil.copytree(quiet_run.folder, folder, symlinks=True)
    for name in ("model_epoch_001_step_00006", "model_epoch_002", "model_latest"):
        path = folder / name
        path.unlink() if path.is_symlink() else shutil.rmtree(path)
    distil(quiet_run.file, f"results_dir={folder.parent}", *EVERY_SECOND)
    shutil.rmtree(folder / "model_epoch_001")
    lines: list[str] = []
    assert replay(folder, 6, say=lines.append).is_same and len(lines) == 1
    attempts = folder / "attempts.jsonl"
    events = [json.loads(line) for line in attempts.read_text().splitlines()]
    events = [event | {"world_size": 2 if event["attempt"] == 1 else 1} for event in events]
    attempts.write_text("".join(json.dumps(event) + "\n" for event in events))
    again = replay(folder, 6, say=lines.append)
    expected = "since then the run had 2, then 1 workers; all steps are computed by 1, as the last one was"
    assert lines[-1] == expected and again.is_same and again.steps == 4
    assert 0 < again.tolerance < 1e-4 and "steps before it ran on 2 workers" in again.reason


class SkipsTheThird(StepHook):
    """A hook of a user."""

    name = "skips_the_third"

    def losses(self, step, batch, losses, last):
        """Skip global step 2."""
        return StepDecision("the third is skipped") if step == 2 else CONTINUE


@pytest.fixture(scope="module")
def own_run(make_spec, distil, tmp_path_factory):
    """A run whose hook skips a step, on shards of its own: its folder, that of its shards, the weights of a teacher."""
    tmp_path = tmp_path_factory.mktemp("own")
    spec = make_spec(tmp_path / "own")
    sources = spec["dataset"]["train_dataset"]["tar_data_sources"]
    for source in sources:
        mine = tmp_path / "shards" / Path(source["root_dir"]).name
        shutil.copytree(source["root_dir"], mine)
        source["root_dir"] = str(mine)
    vit = shutil.copy(spec["distill"]["teacher"][1]["pretrained_teacher_model_path"], tmp_path / "vit.safetensors")
    spec["distill"]["teacher"][1]["pretrained_teacher_model_path"] = str(vit)
    hook = f'train.hooks=["{__name__}:SkipsTheThird"]'
    return distil(spec, hook, *EVERY_SECOND).folder, tmp_path / "shards", Path(vit)


@contextlib.contextmanager
def put_back(*paths: Path) -> Iterator[None]:
    """Files are afterwards as they were."""
    before = {path: path.read_bytes() for path in paths}
    yield
    for path, data in before.items():
        path.write_bytes(data)


def test_a_skipped_step_is_skipped_again_and_what_follows_is_the_same(own_run):
    again = replay(own_run[0], 4)
    assert again.is_same and again.steps == 2 and again.recorded["loss"] > 0
    skipped = replay(own_run[0], 3)
    assert skipped.is_same and not skipped.recorded and not skipped.replayed
    assert skipped.decisions == ("step 3 was skipped: the third is skipped",) * 2


def test_pixels_that_changed_since_are_found_by_their_checksum(own_run, capsys):
    folder, shards, _ = own_run
    tars = list(shards.rglob("*.tar"))
    with put_back(*tars):
        for path in tars:  # one byte of each PNG's data would not decode: so whole images are exchanged
            data = bytearray(path.read_bytes())
            spots = [i for i in range(len(data) - 4) if data[i : i + 2] == b"\xff\xd8"]
            for spot in spots:  # in a JPEG, a byte of the entropy-coded data, far behind the headers
                data[spot + 1500] ^= 0x10
            path.write_bytes(bytes(data))
        again = replay(folder, 1)
    assert again.ids_equal == 1 and again.pixels_equal < 1 and not again.is_same
    with pytest.raises(TrainingError, match="is not the recorded one"):
        show(again)
    assert "the recorded pixels" in capsys.readouterr().out


def test_teachers_weights_that_changed_since_are_refused_by_their_hash(own_run):
    path = own_run[2]
    path.touch()  # another time alone is no other file
    assert replay(own_run[0], 4).is_same
    tensors = safetensors.torch.load_file(path)
    name = next(iter(tensors))
    with put_back(path):
        safetensors.torch.save_file({**tensors, name: tensors[name] + 1}, path)
        with pytest.raises(RadioplatError, match="is another file than the run read") as caught:
            replay(own_run[0], 4)
    assert caught.value.problems[0].where == "distill.teacher[1].pretrained_teacher_model_path"


@pytest.fixture(scope="module")
def rolled_back(make_spec, distil, write_shard, encode, tmp_path_factory):
    """A run on 16 shards of one photograph and one of another, broken: alone at the end of the pass, in step 17."""
    tmp_path = tmp_path_factory.mktemp("rolled_back")
    for number in range(17):
        name = "rocket.jpg" if number == POISONED else "coffee.png"
        images = [pixels << 2 if number == POISONED else pixels for _, pixels in crops([name], 6, 80, seed=number)]
        members = [(f"{number:02d}_{i}.png", encode(image, "PNG")) for i, image in enumerate(images)]
        write_shard(tmp_path / "shards" / f"shard-{number:02d}.tar", members)
    spec = make_spec(tmp_path / "run")
    spec["dataset"]["train_dataset"]["tar_data_sources"] = [{"root_dir": str(tmp_path / "shards")}]
    spec["dataset"]["train_dataset"]["tar_data_sources"][0]["steps_per_epoch"] = 20
    spikes = ("train.spike.action=rollback", "train.spike.window=5", "train.spike.factor=1.1")
    every = ("train.checkpoint_interval=5", "train.checkpoint_interval_unit=step", "train.num_epochs=1")
    return distil(spec, *spikes, *every)


@pytest.mark.proof
@pytest.mark.parametrize(("step", "begin"), [(15, 10), (16, 15), (20, 17)])
def test_steps_around_a_roll_back_are_the_recorded_ones(rolled_back, step, begin):
    again = replay(rolled_back.folder, step)
    assert again.is_same and again.difference == 0 and again.steps == step - begin
    assert again.recorded["loss"] == rolled_back.losses[step]


def test_steps_in_and_after_a_roll_back_are_the_recorded_ones(rolled_back, tmp_path):
    run = tmp_path / "run" / "distill"
    shutil.copytree(rolled_back.folder, run, symlinks=True)
    messages = [line["message"] for line in read_status(run / "status.json")]
    assert any("steps 16 to 17 are taken back and left out (roll-back 1 of 3)" in line for line in messages)
    saved = run / "model_epoch_000_step_00017"  # at once, so that a later start leaves them out, too
    assert saved.is_dir()
    for step, begin in ((17, 15), (18, 17)):
        again = replay(run, step, out=tmp_path / "seen" if step == 17 else None)
        assert again.is_same and again.difference == 0 and again.steps == step - begin, step
        assert again.recorded["loss"] == rolled_back.losses[step], step
    facts = json.loads((tmp_path / "seen" / "step.json").read_text())
    assert {sample["shard"] for sample in facts["samples"]} == {f"shard-{POISONED:02d}.tar"}
    # From a checkpoint before the roll-back it is rolled back again, to what the run's was rolled back to.
    shutil.rmtree(saved)
    again = replay(run, 19)
    assert again.is_same and again.difference == 0 and (again.steps, again.from_checkpoint.name[-5:]) == (4, "00015")
