"""Workers and nodes come and go, drivers die: what is trained is what a quiet run trains."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
import yaml
from forked import Forked, run_script

import radioplat
from benchmarks.elastic_inputs import losses_of, make_inputs, tiny_spec
from benchmarks.elastic_proof import beaten_run, compare, quiet_run, random_schedule
from benchmarks.ledger_rows import read_consumed
from clusters.local import LocalCluster
from radioplat.tracking.attempts.attempts import Attempts
from radioplat.tracking.lease import LeaseTaken
from radioplat.training.accounting.prove import prove_run

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> Path:
    """Shards and a teacher."""
    folder = tmp_path_factory.mktemp("inputs")
    make_inputs(folder)
    return folder


@pytest.fixture
def environment(ray_environment):
    """Of a quick Ray that heeds notices; as it was afterwards."""
    before = dict(os.environ)
    os.environ.update(ray_environment | {"RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "1"})
    yield
    os.environ.clear()
    os.environ.update(before)


def ends(folder: Path) -> list[str]:
    """Why each attempt ended."""
    return [event.cause for event in Attempts(folder).read() if event.event == "end"]


def check_equal(quiet: Path, beaten: Path) -> dict:
    """The promise: same ids, losses and weights within floating-point noise, nothing missing or repeated."""
    found = compare(quiet, beaten)
    assert found["same_ids"] and found["ledger"], found
    assert found["first_loss"] < 1e-5 and found["loss"] < 1e-3, found
    assert found["weights"] < 1e-3, found
    return found


@pytest.mark.proof
def test_a_node_more_and_a_worker_less_change_nothing(environment, inputs, tmp_path):
    # A node needs seconds to join, and the run a few more to grow: some sixty steps.
    quiet = quiet_run(inputs, tmp_path / "quiet", 150)
    beaten, blows = beaten_run(inputs, tmp_path / "beaten", 150, {3: "add", 142: "worker"})
    found = check_equal(quiet, beaten)
    assert [blow.what for blow in blows] == ["add", "worker"]
    events = Attempts(beaten).read()
    assert ends(beaten) == ["resized", "worker_killed", "done"]
    assert [e.world_size for e in events if e.event == "start"] == [1, 2, 2]
    resized, restarted = [e.from_step for e in events if e.event == "start"][1:]
    rows = read_consumed(beaten / "ledger").to_pylist()
    assert max(row["step"] for row in rows if row["attempt"] == 1) + 1 == resized, "a pause costs no step"
    assert found["replayed"] <= 12 * 10, "a killed worker costs what came after the newest checkpoint, no more"
    assert restarted >= 130


JOB = str(Path(__file__).parents[2] / "jobs" / "radio_distill.py")


def wait_for(condition, what: str, seconds: float = 120.0) -> None:
    """Until ``condition()``."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def steps_of(folder: Path) -> int:
    """The newest step that ``status.json`` tells of."""
    return max(losses_of(folder), default=0) if (folder / "status.json").exists() else 0


def test_two_copies_and_a_lost_driver(inputs, tmp_path):
    """A second copy is refused while the first lives; when it is killed, the same command goes on at once."""
    spec = tiny_spec(inputs, tmp_path / "run", 150, (1, 1), checkpoint_interval=5)
    spec["cluster"]["mode"] = "local"
    file, folder = tmp_path / "spec.yaml", tmp_path / "run" / "distill"
    file.write_text(yaml.safe_dump(spec))
    driver = Forked(run_script, JOB, "-e", str(file))
    try:
        wait_for(lambda: any(folder.glob("model_epoch_*")), "no checkpoint")
        before = len((folder / "status.json").read_text().splitlines())
        with pytest.raises(LeaseTaken, match=f"process {driver.pid} on "):
            radioplat.distill(spec, say=lambda line: None)
        lines = (folder / "status.json").read_text().splitlines()[before:]
        messages = [json.loads(line)["message"] for line in lines]
        assert not any("failed" in m or m.startswith("distill") for m in messages), "it wrote into another's diary"
    finally:
        driver.kill()
    done = steps_of(folder)
    assert 5 <= done < 150
    said: list[str] = []
    result = radioplat.distill(spec, [f"train.max_steps={done + 2}"], say=said.append)
    assert result.resumed_from >= 5 and result.global_step == done + 2 and prove_run(folder).holds
    assert not any("is held by" in line for line in said)
    assert ends(folder) == ["unknown", "done"]
    assert "driver" in Attempts(folder).read()[1].detail


@pytest.mark.proof
@pytest.mark.timeout(900)
def test_300_steps_of_random_kills_and_resizes(environment, inputs, tmp_path, capfd):
    quiet = quiet_run(inputs, tmp_path / "quiet", 300)
    beaten, blows = beaten_run(inputs, tmp_path / "beaten", 300, random_schedule(300, seed=1))
    found = check_equal(quiet, beaten)
    assert {blow.what for blow in blows} == {"worker", "node", "drain", "add"}
    assert set(ends(beaten)) == {"worker_killed", "node_lost", "drained", "resized", "done"}
    sizes = {event.world_size for event in Attempts(beaten).read()}
    assert sizes == {1, 2, 3}
    with capfd.disabled():
        print(f"\n{found}\n{[(blow.step, blow.what) for blow in blows]}\n{ends(beaten)}")


@pytest.mark.proof
@pytest.mark.timeout(600)
def test_the_whole_cluster_is_lost(environment, inputs, tmp_path):
    """Head, workers and driver die; the same command on another cluster goes on."""
    file, folder = tmp_path / "spec.yaml", tmp_path / "run" / "distill"
    spec = tiny_spec(inputs, tmp_path / "run", 60, (2, 2), checkpoint_interval=5)
    file.write_text(yaml.safe_dump(spec))
    cluster = LocalCluster(nodes=2)
    joined = os.environ | {"RAY_ADDRESS": cluster.address}
    driver = Forked(run_script, JOB, "-e", str(file), environment=joined)
    try:
        wait_for(lambda: any(folder.glob("model_epoch_*")), "no checkpoint", 200)
    finally:
        driver.kill()
        cluster.close()
    assert steps_of(folder) < 60
    beaten, _ = beaten_run(inputs, tmp_path / "run", 60, {}, checkpoint_interval=5, min_workers=1, max_workers=1)
    assert ends(beaten)[0] == "unknown" and ends(beaten)[-1] == "done"
    check_equal(quiet_run(inputs, tmp_path / "quiet", 60, checkpoint_interval=5), beaten)
