"""A pipeline on a Ray cluster: nodes side by side where they fit, one of several workers among them, and a stop."""

from __future__ import annotations

import json
import signal
import threading
import time
from pathlib import Path

import pytest
import ray

import radioplat
from benchmarks.judges.pipeline import judged
from radioplat.errors import Stopped
from radioplat.tasks.pipeline.record import Record, State
from radioplat.tracking.status import read_status

pytestmark = [pytest.mark.ray, pytest.mark.timeout(400), pytest.mark.proof]
TAUGHT = "distill.teacher=[{name: proxy, mode: combo, pretrained_teacher_model_path: '${nodes.proxy.student}'}]"


def world_size(folder: Path) -> int:
    """The number of workers of a node's run."""
    return json.loads((folder / "distill" / "attempts.jsonl").read_text().splitlines()[0])["world_size"]


@pytest.fixture(scope="module")
def cluster():
    """Four CPUs."""
    ray.init(num_cpus=4, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture
def tree(make_spec, tmp_path) -> dict:
    """A proxy, and three students of it: two of one worker, one of two."""
    spec = make_spec("never", {"cluster": {"mode": "auto", "cpus_per_worker": 1.0}})
    del spec["results_dir"], spec["teachers"]
    spec["distill"]["teacher"] = spec["distill"]["teacher"][1:]
    spec["train"] |= {"checkpoint_interval": 2, "checkpoint_interval_unit": "step"}
    students = {name: {"changes": [TAUGHT]} for name in ("small", "other")}
    students["two"] = {"changes": [TAUGHT, "train.num_gpus=2", "teachers={proxy: {num_cpus: 0.5}}"]}
    return {"results_dir": str(tmp_path / "out"), "spec": spec, "nodes": {"proxy": {}, **students}}


def times(folder: Path) -> tuple[str, str]:
    """The first and the last time in a run's status."""
    lines = read_status(folder / "distill" / "status.json")
    return lines[0]["time"], lines[-1]["time"]


def test_nodes_run_side_by_side_and_none_again(tree, cluster):
    report = radioplat.pipeline(tree)
    assert {entry.name: entry.state for entry in report.nodes} == dict.fromkeys(tree["nodes"], State.done)
    (begin, end), (other_begin, other_end) = (times(report.folder / name) for name in ("small", "other"))
    assert begin <= other_end and other_begin <= end
    sizes = {name: world_size(report.folder / name) for name in tree["nodes"]}
    assert sizes == {"proxy": 1, "small": 1, "other": 1, "two": 2}
    assert all("step" in (report.folder / name / "output.log").read_text() for name in tree["nodes"])
    lines: list[str] = []
    assert radioplat.pipeline(tree, say=lines.append).nodes == report.nodes
    assert lines == [f"{report.folder}: 4 of 4 nodes are done already"]
    assert judged(report.folder)["ran"] == {1: list(tree["nodes"]), 2: []}


def test_students_with_workers_of_their_own(tree, cluster):
    """A node of one worker for each of two students, side by side, and what needs one of them."""
    wide = {"name": "wide", "model": {"backbone": {"kwargs": {"embed_dim": 96}}}}
    family = {
        "cluster": {"mode": "ray", "cpus_per_worker": 1.0, "cpus_per_decode": 0.5},
        "distill": tree["spec"]["distill"] | {"students": [{"name": "first"}, wide], "placement": "spread"},
    }
    [teacher] = [each["name"] for each in family["distill"]["teacher"]]
    spec = tree["spec"] | family | {"teachers": {teacher: {"num_cpus": 0.5}}}
    start = "train.pretrained_model_path=${nodes.family.students.first}"
    tree["nodes"] = {"family": {"spec": spec}, "next": {"changes": [start, "train.max_steps=2"]}}
    report = radioplat.pipeline(tree)
    assert {entry.name: entry.state for entry in report.nodes} == {"family": State.done, "next": State.done}
    folders = [report.folder / "family" / "students" / name for name in ("first", "wide")]
    assert [world_size(folder) for folder in folders] == [1, 1]
    (begin, end), (other_begin, other_end) = map(times, folders)
    assert begin <= other_end and other_begin <= end


def test_a_stop_is_for_all_nodes(tree, cluster):
    """As SIGTERM does; every node that trains saves first."""
    del tree["nodes"]["two"]
    longer = ["train.num_epochs=20", "dataset.train_dataset.tar_data_sources[0].steps_per_epoch=40"]
    tree["nodes"] |= {name: {"changes": [TAUGHT, *longer]} for name in ("small", "other")}
    home = Path(tree["results_dir"])

    def stop() -> None:
        end = time.monotonic() + 200
        while not all(list(home.glob(f"{name}/distill/model_epoch_*")) for name in ("small", "other")):
            if time.monotonic() > end:
                break
            time.sleep(0.05)
        signal.raise_signal(signal.SIGTERM)

    threading.Thread(target=stop, daemon=True).start()
    with pytest.raises(Stopped):
        radioplat.pipeline(tree)
    entries = Record(home).entries
    assert {name: entry.state for name, entry in entries.items()} == {
        "proxy": State.done,
        "small": State.stopped,
        "other": State.stopped,
    }
    lines: list[str] = []
    steps = [f"nodes.{name}.train.max_steps={entries[name].step + 1}" for name in ("small", "other")]
    radioplat.pipeline(tree, steps, say=lines.append)
    assert "proxy starts (distill)" not in lines


def test_a_stop_cancels_a_node_that_waits_for_resources(tree, cluster):
    """All CPUs are another's, who keeps them."""

    @ray.remote(num_cpus=4)
    class Keeper:
        def ready(self) -> bool:
            return True

    keeper = Keeper.remote()
    assert ray.get(keeper.ready.remote(), timeout=60)
    tree["nodes"] = {"proxy": {}}
    lines: list[str] = []

    def say(line: str) -> None:
        """Ask for the stop once the node is submitted."""
        lines.append(line)
        if line == "proxy starts (distill)":
            threading.Timer(3.0, signal.raise_signal, [signal.SIGTERM]).start()

    begin = time.monotonic()
    with pytest.raises(Stopped):
        radioplat.pipeline(tree, say=say)
    assert time.monotonic() - begin < 60 and "proxy is stopped; the same command continues it" in lines
    home = Path(tree["results_dir"])
    assert Record(home).entries["proxy"].state is State.stopped and not list(home.glob(".*"))
    ray.kill(keeper)
    assert radioplat.pipeline(tree).nodes[0].state is State.done
