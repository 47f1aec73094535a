"""On a real cluster: a stopped worker is found and its group starts again; two workers roll back, or halve, alike."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
import ray
import torch

import radioplat
from radioplat.tasks.inspect.diagnose import diagnose
from radioplat.tracking.attempts.logs import attempt_folder, cause_of, last_words
from radioplat.training.accounting.prove import prove_run
from radioplat.training.checkpoints.checkpoint import verified_state

pytestmark = [pytest.mark.timeout(280), pytest.mark.proof]


def forced_verdict() -> None:
    """In every process: where ``FORCED`` is set, rank 1 alone calls the sixth step that it judges a jump."""
    import os

    if "FORCED" not in os.environ:
        return
    from radioplat.training.guards.loss_spikes import SpikeGuard

    calls: list[float] = []

    def verdict(self, loss: float) -> bool:
        calls.append(loss)
        return os.environ.get("RANK") == "1" and len(calls) == 6

    SpikeGuard.is_spike = verdict


def appetite() -> None:
    """In every process: where ``HUNGRY`` is set, rank 1 has a real limit of address space and a tensor a sample."""
    import os

    if "HUNGRY" not in os.environ:
        return
    import resource

    from radioplat.objectives.distill import DistillObjective

    forward, limited = DistillObjective.forward, []

    def hungry(self, batch):
        """As ``forward``, beside 800 MiB a sample."""
        if os.environ.get("RANK") == "1":
            if not limited:
                pages = int(Path("/proc/self/statm").read_text().split()[0])
                limited.append(pages * resource.getpagesize() + 1200 * 2**20)
                resource.setrlimit(resource.RLIMIT_AS, (limited[0],) * 2)
            torch.empty(len(batch.weight) * 800 * 2**20, dtype=torch.uint8)
        return forward(self, batch)

    DistillObjective.forward = hungry


def interference() -> None:
    """What Ray calls in every process of the cluster."""
    forced_verdict()
    appetite()


@pytest.fixture
def cluster(ray_environment, request):
    before = dict(os.environ)
    os.environ.update(ray_environment | getattr(request, "param", {}))
    here = sys.modules[__name__]  # no process of the cluster can import it
    ray.cloudpickle.register_pickle_by_value(here)
    ray.init(
        address="local",
        num_cpus=6,
        num_gpus=0,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        runtime_env={"worker_process_setup_hook": interference},
    )
    yield
    ray.shutdown()
    ray.cloudpickle.unregister_pickle_by_value(here)
    os.environ.clear()
    os.environ.update(before)


def stop_at(folder: Path, step: int, stopped: list[int]) -> None:
    """Stop the process of rank 1 in the first attempt once it has come to ``step``."""
    path = attempt_folder(folder, 1) / "pulse_1.json"
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        try:
            pulse = json.loads(path.read_text())
        except (OSError, ValueError):
            pulse = {"step": -1}
        if pulse["step"] >= step:
            os.kill(pulse["process"], signal.SIGSTOP)
            stopped.append(pulse["process"])
            return
        time.sleep(0.05)


def test_a_stopped_worker_is_found_and_the_group_starts_again(cluster, make_spec, tmp_path, ids_by_step):
    train = {"num_gpus": 2, "zero_stage": 1, "hang_timeout_s": 12, "num_epochs": 10, "checkpoint_interval": 2}
    spec = make_spec(tmp_path, {"train": train, "cluster": {"mode": "ray", "cpu_hour_price": 1.0}})
    folder, stopped = tmp_path / "distill", []
    watcher = threading.Thread(target=stop_at, args=(folder, 10, stopped), daemon=True)
    watcher.start()
    try:
        result = radioplat.distill(spec, say=lambda line: None)
    finally:
        for process in stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
    assert stopped and result.global_step == 40
    words = last_words(folder, 1)
    assert [w.rank for w in words] == [0] and words[0].cause == "hang" and "rank 1" in words[0].detail
    assert "runs no more" in words[0].detail
    assert (attempt_folder(folder, 1) / "stacks_0.txt").stat().st_size > 0
    assert cause_of(folder, 1)[0] == "hang"
    proof = prove_run(folder)
    assert proof.holds and len(proof.attempts) == 2 and len(ids_by_step(folder)) == 40
    account = result.account
    assert [(n, cause) for n, cause, _ in account.restarts] == [(1, "hang")]
    assert account.seconds["recovery"] >= 12 / 2 and account.lost == 0 and account.price > 0
    logs = {path.name for number in (1, 2) for path in attempt_folder(folder, number).glob("*.log")}
    assert {"driver.log", "worker_0.log", "worker_1.log", "teacher_lite0.log", "teacher_vit.log"} <= logs
    assert "loads on cpu" in (attempt_folder(folder, 1) / "teacher_vit.log").read_text()
    found = diagnose(tmp_path)
    assert found.cause.startswith("no failure") and any("hang (1)" in line for line in found.evidence)


@pytest.mark.parametrize("cluster", [{"FORCED": "1"}], indirect=True)
def test_two_workers_roll_back_alike_when_one_sees_a_jump(cluster, make_spec, tmp_path, student_tensors):
    """The verdict of rank 1 is forced; what both do about it is not."""
    train = {"num_gpus": 2, "zero_stage": 2, "checkpoint_interval": 2, "checkpoint_interval_unit": "step"}
    spec = make_spec(tmp_path, {"train": train, "cluster": {"mode": "ray"}})
    spec["train"]["spike"] = {"action": "rollback"}
    result = radioplat.distill(spec, say=lambda line: None)
    state = verified_state(result.checkpoint)
    assert (result.global_step, state.optimizer_steps, state.rollbacks) == (8, 6, 1)
    proof = prove_run(result.folder)
    assert proof.holds and proof.unlearned == {"rolled_back": 12}
    before, after = (
        student_tensors(result.folder / name) for name in ("model_epoch_001", "model_epoch_001_step_00006")
    )
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("cluster", [{"HUNGRY": "1", "MALLOC_ARENA_MAX": "1"}], indirect=True)
def test_two_workers_halve_alike_when_one_runs_out_of_memory(cluster, make_spec, tmp_path, distil, ids_by_step):
    train = {"num_gpus": 2, "zero_stage": 2, "max_steps": 4}
    result = radioplat.distill(
        make_spec(tmp_path / "hungry", {"train": train, "cluster": {"mode": "ray"}}), say=lambda line: None
    )
    assert json.loads((result.folder / "memory.json").read_text()) == {"batch_size": 2, "halvings": 1, "attempt": 1}
    assert [(n, cause) for n, cause, _ in result.account.restarts] == [(1, "oom")]
    quiet = distil(make_spec(tmp_path / "quiet", {"train": train | {"num_gpus": 1}}))
    assert prove_run(result.folder).holds and ids_by_step(result.folder) == ids_by_step(quiet.folder)
    lines = map(json.loads, (result.folder / "status.json").read_text().splitlines())
    losses = {line["step"]: line["kpi"]["loss"] for line in lines if "max_step" in line}
    assert losses == pytest.approx(quiet.losses, rel=1e-3)
    assert any("oom (1)" in line for line in diagnose(tmp_path / "hungry").evidence)
