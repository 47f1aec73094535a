"""A run whose storage fails under it: it pauses, loses nothing, and says so; and steps of which nothing has weight."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml

import radioplat
from benchmarks.elastic_inputs import losses_of, make_inputs, tiny_spec
from radioplat.data.ledger.ledger import read_rejected
from radioplat.tasks.inspect.diagnose import diagnose
from radioplat.tracking.attempts.attempts import Attempts
from radioplat.tracking.results import TaskFolder
from radioplat.tracking.status import read_status
from radioplat.training.accounting.prove import prove_run
from radioplat.training.checkpoints.checkpoint import newest

pytestmark = pytest.mark.timeout(300)
JOB = [sys.executable, str(Path(__file__).parents[2] / "jobs" / "radio_distill.py"), "-e"]
TARS = "dataset.train_dataset.tar_data_sources"
STEPS = 120


def test_a_step_of_which_no_sample_has_weight_moves_nothing(
    make_spec, distil, write_shard, crops, encode, student_tensors, tmp_path, capfd
):
    """Weights, moments and average stay; the steps are in status.json, on the terminal and in the ledger."""
    torn = [(f"{i}.png", encode(pixels, "PNG")) for i, (_, pixels) in enumerate(crops(8, 80, 11))]
    write_shard(tmp_path / "tars" / "0.tar", [(name, data[:-2000] + bytes(2000)) for name, data in torn])
    spec = make_spec(tmp_path / "results")
    trail = distil(
        spec,
        f"{TARS}=[{{root_dir: {tmp_path / 'tars'}, steps_per_epoch: 2}}]",
        "dataset.max_bad_fraction=1",
        "train.enable_ema=true",
        "train.optim.weight_decay=0.5",
        "train.checkpoint_interval=1",
        "train.checkpoint_interval_unit=step",
    )
    first, *_, last = TaskFolder(spec["results_dir"], "distill", None).checkpoints()
    before, after = student_tensors(first), student_tensors(last)
    assert all(torch.equal(before[name], after[name]) for name in before)
    state = newest(trail.folder)[1]
    assert (state.global_step, state.optimizer_steps) == (4, 0)
    lines = [line["message"] for line in read_status(trail.folder / "status.json") if line["verbosity"] == "WARNING"]
    assert [line for line in lines if "skipped" in line] == [
        "step 1 was skipped: none of its samples has weight",
        *(f"step {n} was skipped: none of its samples has weight ({n} such steps in a row)" for n in (2, 3, 4)),
    ]
    terminal = [line.split()[1] for line in capfd.readouterr().err.splitlines() if "was skipped" in line]
    assert terminal == ["1", "2", "4"]
    reasons = [reason.partition(":")[0] for reason in read_rejected(trail.folder / "ledger")["reason"].to_pylist()]
    assert (reasons.count("corrupt_image"), reasons.count("skipped_step")) == (24, 24)
    assert prove_run(trail.folder).holds


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> Path:
    """Shards and a teacher."""
    folder = tmp_path_factory.mktemp("inputs")
    make_inputs(folder)
    return folder


@pytest.fixture
def begin(tmp_path, inputs, failing_reads, ray_environment):
    """begin(mode, **dataset fields) -> the command of a run, whose reads may be made to fail."""
    begun: list[subprocess.Popen] = []

    def run(mode: str = "local", **fields: float) -> subprocess.Popen:
        spec = tiny_spec(inputs, tmp_path / "run", STEPS if mode == "local" else 20, (1, 1))
        spec["cluster"]["mode"] = mode
        spec["dataset"] |= fields
        (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
        with open(tmp_path / "said", "w") as said:
            begun.append(
                subprocess.Popen(
                    [*JOB, tmp_path / "spec.yaml"],
                    stdout=said,
                    stderr=said,
                    start_new_session=True,
                    env=ray_environment | failing_reads.environment,
                )
            )
        return begun[-1]

    yield run
    for process in begun:
        process.kill()
        process.wait()


def wait_for(condition: Callable[[], object], seconds: float = 100.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def steps_of(folder: Path) -> int:
    return max(losses_of(folder), default=0) if (folder / "status.json").exists() else 0


def lines_of(folder: Path, word: str) -> list[str]:
    return [line["message"] for line in read_status(folder / "status.json") if word in line["message"]]


@pytest.mark.proof
def test_an_outage_in_the_middle_costs_a_pause_and_nothing_else(begin, inputs, tmp_path, failing_reads):
    folder = tmp_path / "run" / "distill"
    process = begin(read_timeout_s=2.0)
    wait_for(lambda: steps_of(folder) >= 5)
    for number, fault in enumerate((failing_reads.fail, failing_reads.hang), start=1):
        fault("shards/")
        wait_for(lambda n=number: len(lines_of(folder, "waiting for storage")) == n)
        time.sleep(2.0)
        failing_reads.mend()
        wait_for(lambda n=number: len(lines_of(folder, "can be read again")) == n)
    assert process.wait(120) == 0
    said = (tmp_path / "said").read_text()
    for word in ("waiting for storage", "storage can be read again"):
        assert len(lines_of(folder, word)) == said.count(word) == 2, said
    proof = prove_run(folder)
    assert proof.holds and not proof.unlearned and proof.consumed == STEPS * 12
    spec = tiny_spec(inputs, tmp_path / "quiet", STEPS, (1, 1))
    spec["cluster"]["mode"] = "local"
    quiet = radioplat.distill(spec, say=lambda line: None)
    assert losses_of(quiet.folder) == losses_of(folder)


@pytest.mark.proof
def test_an_outage_that_lasts_ends_the_run_which_then_goes_on(begin, tmp_path, failing_reads):
    folder = tmp_path / "run" / "distill"
    process = begin(storage_timeout_s=12.0)
    wait_for(lambda: steps_of(folder) >= 12)
    failing_reads.fail("shards/")
    assert process.wait(60) not in (0, 75)
    said = (tmp_path / "said").read_text()
    assert "dataset.storage_timeout_s" in said and "Input/output error" in said and "Traceback" not in said
    assert "could not be read for" in diagnose(folder).cause
    failing_reads.mend()
    assert begin().wait(120) == 0
    assert "goes on from model_" in (tmp_path / "said").read_text()
    proof = prove_run(folder)
    assert proof.holds and not proof.unlearned


@pytest.mark.proof
def test_sigterm_is_heeded_while_storage_is_waited_for(begin, tmp_path, failing_reads):
    folder = tmp_path / "run" / "distill"
    process = begin()
    wait_for(lambda: steps_of(folder) >= 12)
    failing_reads.fail("shards/")
    wait_for(lambda: lines_of(folder, "waiting for storage"))
    process.send_signal(signal.SIGTERM)
    assert process.wait(25) == 75
    failing_reads.mend()
    assert begin().wait(120) == 0
    proof = prove_run(folder)
    assert proof.holds and not proof.unlearned


@pytest.mark.proof
def test_on_ray_the_driver_says_it_and_no_group_starts_again_to_wait_as_long(begin, tmp_path, failing_reads):
    folder = tmp_path / "run" / "distill"
    indexed = folder / "data" / "shards.parquet"
    process = begin("ray", storage_timeout_s=15.0)
    wait_for(indexed.exists)
    failing_reads.fail("shards/")  # from the first read on: readers are far ahead of so small a student
    assert process.wait(150) not in (0, 75)
    said = (tmp_path / "said").read_text()
    assert said.count("waiting for storage") == 1 and "storage can be read again" not in said
    (failure,) = lines_of(folder, "distill failed")
    assert "dataset.storage_timeout_s: " in failure and "Traceback" not in failure
    assert [event.cause for event in Attempts(folder).read() if event.event == "end"] == ["storage"]

    process = begin("ray")
    wait_for(lambda: len(lines_of(folder, "waiting for storage")) == 2)
    failing_reads.mend()
    assert process.wait(200) == 0
    assert len(lines_of(folder, "storage can be read again")) == 1
    proof = prove_run(folder)
    assert proof.holds and not proof.unlearned
