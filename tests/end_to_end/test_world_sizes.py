"""On a real Ray cluster: what a run computes depends neither on the number of workers nor on who dies meanwhile."""

from __future__ import annotations

import os
import random
import signal
import threading
import time

import pytest
import ray
import safetensors.torch
import torch
from ray.util.state import list_actors

import radioplat
from radioplat.design.partitions import Partitions
from radioplat.errors import TrainingError, WeightsError
from radioplat.spec.loading.load import load_spec
from radioplat.spec.schema.distill import PartitionConfig
from radioplat.teachers.serving.named_pools import stop_pools
from radioplat.teachers.serving.pool import NAMESPACE
from radioplat.tracking.follow import CheckpointEvent, StepEvent
from radioplat.training.accounting.prove import prove_run
from radioplat.training.checkpoints.checkpoint import verified_state

pytestmark = [pytest.mark.timeout(240), pytest.mark.proof]  # test_everything.py has the shortest of it
STEPS = 8


@pytest.fixture(scope="module")
def cluster(ray_environment):
    """One small cluster of this module's own, with its dashboard, which answers for the state of actors."""

    def short_executions() -> None:
        # In every process of the cluster: an execution covers five steps, so that each run crosses to the next.
        from radioplat.data.loading import ray_stream

        ray_stream.MICRO_BATCHES, ray_stream.LEAST_STEPS = 20, 1

    before = dict(os.environ)
    os.environ.update(ray_environment)
    ray.init(
        address="local",
        num_cpus=6,
        num_gpus=0,
        include_dashboard=True,
        log_to_driver=False,
        logging_level="ERROR",
        runtime_env={"worker_process_setup_hook": short_executions},
    )
    yield
    ray.shutdown()
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="module")
def workers(make_spec):
    """workers(results_dir, count, **train) -> a spec for that many workers on the cluster."""

    def make(results_dir, count: int, **train) -> dict:
        return make_spec(results_dir, {"train": {"num_gpus": count, **train}, "cluster": {"mode": "ray"}})

    return make


@pytest.fixture(scope="module")
def local_run(make_spec, distil, tmp_path_factory):
    """The reference: ZeRO-2, fp32, one process."""
    return distil(make_spec(tmp_path_factory.mktemp("local"), {"train": {"zero_stage": 2}}))


@pytest.fixture(scope="module")
def two_workers(cluster, workers, distil, tmp_path_factory):
    """The same spec on two workers: 3 micro-batches a step, so one rank gets a padded one."""
    return distil(workers(tmp_path_factory.mktemp("two"), 2, zero_stage=2))


def test_same_ids_at_one_and_two_workers(local_run, two_workers, ids_by_step):
    ids = ids_by_step(two_workers.folder)
    assert ids == ids_by_step(local_run.folder)
    assert sorted(ids) == list(range(STEPS)) and all(len(step) == 6 for step in ids.values())
    proof = prove_run(two_workers.folder)
    assert proof.holds and proof.consumed == 6 * STEPS and proof.replayed == 0


def test_same_losses_at_one_and_two_workers(local_run, two_workers):
    for name, alone in local_run.result.teacher_costs.teachers.items():
        cost = two_workers.result.teacher_costs.teachers[name]
        assert (cost.images, cost.bytes) == (alone.images, alone.bytes) == (6 * STEPS, alone.bytes)
        assert 0 < cost.seconds == pytest.approx(2 * cost.cpu_seconds) and cost.busy <= 1  # num_cpus: 0.5
    assert two_workers.losses.keys() == local_run.losses.keys() == set(range(1, STEPS + 1))
    assert two_workers.losses[1] == pytest.approx(local_run.losses[1], rel=1e-5)
    for step, loss in local_run.losses.items():
        assert two_workers.losses[step] == pytest.approx(loss, rel=1e-3), step


def test_a_cluster_takes_what_a_local_run_kept(cluster, workers, make_spec, distil, tmp_path):
    cache = f"feature_cache.dir={tmp_path / 'cache'}"
    alone = distil(make_spec(tmp_path / "local", {"train": {"zero_stage": 2}}), cache, "train.max_steps=1")
    kept = len(list((tmp_path / "cache").iterdir()))
    trail = distil(workers(tmp_path / "ray", 2, zero_stage=2), cache, "train.max_steps=2")
    first, second = (e.metrics for e in trail.events if isinstance(e, StepEvent))
    for name in ("lite0", "vit"):
        assert (first[f"cache/{name}/hits"], second[f"cache/{name}/hits"]) == (1.0, 0.0)
    assert trail.losses[1] == pytest.approx(alone.losses[1], rel=1e-5)
    assert len(list((tmp_path / "cache").iterdir())) > kept  # both workers added what the second step needed


def test_the_group_said_what_it_runs_on(two_workers):
    assert any("no GPU" in line and "2 CPU worker" in line for line in two_workers.lines)
    assert verified_state(two_workers.result.checkpoint).world_size == 2


@pytest.mark.parametrize("stage", [2, 3])
def test_workers_whose_micro_batches_other_teachers_see(cluster, workers, make_spec, distil, tmp_path, stage):
    """Ranks that are at the same place of a step with different teachers do not wait for each other for ever."""
    half = [{"share": 0.5, "teachers": ["lite0"]}, {"share": 0.5, "teachers": ["vit"]}]

    def with_halves(spec: dict) -> dict:
        spec["distill"]["partitions"] = half
        return spec

    size = {"global_batch_size": 8, "max_steps": 6, "zero_stage": stage}
    alone = distil(with_halves(make_spec(tmp_path / "local", {"train": size})))
    both = distil(with_halves(workers(tmp_path / "ray", 2, **size)))
    seed = load_spec(both.folder / "experiment.yaml").train.seed
    assignment = [Partitions.of([PartitionConfig(**p) for p in half], seed, 4).of_step(step) for step in range(6)]
    assert any(first != second for step in assignment for first, second in step.reshape(2, 2))
    assert any(len(set(step[::2])) == 1 for step in assignment), "rank 0 meets one teacher only"
    for event in (e for e in both.events if isinstance(e, StepEvent)):
        assert {"seconds/teacher/lite0", "seconds/teacher/vit"} <= event.metrics.keys()
        assert event.metrics["loss"] == pytest.approx(alone.losses[event.step], rel=1e-3), event.step
    assert both.losses.keys() == alone.losses.keys() and both.losses[1] == pytest.approx(alone.losses[1], rel=1e-5)


def test_bf16_on_two_workers_goes_on_with_one(cluster, workers, make_spec, distil, ids_by_step, local_run, tmp_path):
    bf16 = {"zero_stage": 2, "precision": "bf16"}
    first = distil(workers(tmp_path, 2, max_steps=5, **bf16))
    assert first.result.global_step == 5
    then = distil(make_spec(tmp_path, {"train": bf16}))
    assert then.result.resumed_from == 5 and sorted(then.losses) == [6, 7, 8]
    assert "train.num_gpus: 2 -> 1" in then.lines[0]
    assert ids_by_step(then.folder) == ids_by_step(local_run.folder)
    assert prove_run(then.folder).holds
    for step, loss in {**first.losses, **then.losses}.items():  # max_steps shortened the first schedule
        assert loss == pytest.approx(local_run.losses[step], rel=0.05), step


class Chaos:
    """A callback that kills a teacher after the first step, and a training worker after a checkpoint behind that."""

    def __init__(self) -> None:
        self.dead: dict[str, int] = {}  # class of the actor: step
        self.attempt_after_teacher = 0

    def __call__(self, event: StepEvent | CheckpointEvent) -> None:
        if "Replica" not in self.dead:
            self._kill("Replica", event.step)
        elif isinstance(event, CheckpointEvent) and event.step >= self.dead["Replica"] + 2 and len(self.dead) == 1:
            self.attempt_after_teacher = verified_state(event.path).attempt
            self._kill("RayTrainWorker", event.step)

    def _kill(self, kind: str, step: int) -> None:
        alive = [a for a in list_actors(detail=True) if a.class_name == kind and a.state == "ALIVE"]
        self.dead[kind] = step
        os.kill(alive[-1].pid, signal.SIGKILL)


@pytest.mark.timeout(600)
def test_dead_teachers_and_workers_lose_no_sample(
    cluster, workers, ids_by_step, make_spec, distil, student_tensors, tmp_path
):
    longer = {"zero_stage": 2, "num_epochs": 4, "checkpoint_interval": 2, "checkpoint_interval_unit": "step"}
    chaos, events = Chaos(), []
    spec = workers(tmp_path / "chaos", 2, **longer)
    result = radioplat.distill(spec, callbacks=[chaos, events.append], say=lambda line: None)
    assert chaos.dead.keys() == {"Replica", "RayTrainWorker"} and result.global_step == 16
    assert chaos.attempt_after_teacher == 1, "a dead teacher must not restart the workers"
    assert verified_state(result.checkpoint).attempt == 2
    quiet = distil(make_spec(tmp_path / "quiet", {"train": longer}))
    assert ids_by_step(result.folder) == ids_by_step(quiet.folder)
    proof = prove_run(result.folder)
    assert proof.holds and proof.consumed == 6 * 16
    for event in events:
        if isinstance(event, StepEvent):
            assert event.metrics["loss"] == pytest.approx(quiet.losses[event.step], rel=1e-3), event.step
    mine, theirs = student_tensors(result.checkpoint), student_tensors(quiet.result.checkpoint)
    assert mine.keys() == theirs.keys()


class Killer(threading.Thread):
    """Kills a replica with requests in flight every few seconds, for a minute from the first step."""

    SECONDS = 60.0

    def __init__(self, pools: list[str]) -> None:
        super().__init__(daemon=True)
        self._pools, self._begun, self.killed, self.lasted = pools, threading.Event(), [], 0.0

    def __call__(self, event: StepEvent | CheckpointEvent) -> None:
        self._begun.set()

    def run(self) -> None:
        self._begun.wait()
        begin, chance = time.monotonic(), random.Random(0)
        while (now := time.monotonic() - begin) < self.SECONDS:
            controller = ray.get_actor(chance.choice(self._pools), namespace=NAMESPACE)
            replica = chance.choice(ray.get(controller.replicas.remote()))
            try:
                health = ray.get(replica.health.remote(), timeout=0.3)  # one that is dead has no answer yet
            except (ray.exceptions.GetTimeoutError, ray.exceptions.RayActorError):
                continue
            if health.waiting:
                os.kill(health.process, signal.SIGKILL)
                self.killed.append(now)
                time.sleep(chance.uniform(1, 3))
        self.lasted = time.monotonic() - begin


@pytest.mark.timeout(900)
def test_a_minute_of_dying_teachers_changes_nothing(cluster, workers, ids_by_step, make_spec, distil, tmp_path):
    longer = {"zero_stage": 2, "num_epochs": 50, "checkpoint_interval": 50}
    spec = workers(tmp_path / "chaos", 2, **longer)
    spec["teachers"] = {name: {"replicas": 2, "num_cpus": 0.2, "pool": "chaos"} for name in ("lite0", "vit")}
    killer, events = Killer(["chaos/lite0", "chaos/vit"]), []
    killer.start()
    try:
        result = radioplat.distill(spec, callbacks=[killer, events.append], say=lambda line: None)
    finally:
        stop_pools(None)
    assert killer.lasted >= Killer.SECONDS and len(killer.killed) >= 5, (killer.lasted, killer.killed)
    assert verified_state(result.checkpoint).attempt == 1, "a dead teacher must not restart the workers"
    quiet = distil(make_spec(tmp_path / "quiet", {"train": longer}))
    assert ids_by_step(result.folder) == ids_by_step(quiet.folder)
    proof = prove_run(result.folder)
    assert proof.holds and proof.replayed == 0
    losses = {e.step: e.metrics["loss"] for e in events if isinstance(e, StepEvent)}
    assert losses.keys() == quiet.losses.keys()
    for step, loss in losses.items():
        assert loss == pytest.approx(quiet.losses[step], rel=1e-3), step


def _one_teacher(spec: dict, path, **train) -> dict:
    spec["distill"]["teacher"] = [spec["distill"]["teacher"][1] | {"pretrained_teacher_model_path": str(path)}]
    spec["teachers"] = {}
    spec["train"] |= train
    return spec


def test_weights_that_cannot_teach_are_named_as_in_local_mode(cluster, workers, weights, tmp_path):
    tensors = safetensors.torch.load_file(weights["vit"])
    tensors["norm.weight"][3] = float("nan")
    safetensors.torch.save_file(tensors, tmp_path / "nan.safetensors")
    with pytest.raises(WeightsError, match="teacher.0..pretrained_teacher_model_path: .*'norm.weight' holds NaN"):
        radioplat.distill(_one_teacher(workers(tmp_path, 2), tmp_path / "nan.safetensors"), say=lambda line: None)


def test_what_all_workers_agree_on_ends_the_run_at_once(cluster, workers, weights, tmp_path):
    tensors = safetensors.torch.load_file(weights["vit"])
    tensors["norm.weight"] = tensors["norm.weight"] + 3e38
    safetensors.torch.save_file(tensors, tmp_path / "vit.safetensors")
    with pytest.raises(TrainingError, match="train.non_finite: step 0: not finite: .*loss/vit/spatial"):
        spec = _one_teacher(workers(tmp_path, 2), tmp_path / "vit.safetensors", non_finite="fail")
        radioplat.distill(spec, say=lambda line: None)
    assert len(list((tmp_path / "distill" / "ledger").glob("consumed-a*-r00000-*"))) == 1, "it must not be restarted"


@pytest.mark.parametrize(("scheme", "stage"), [("self", 1), ("self", 3), ("online", 2), ("online", 3)])
def test_teachers_inside_the_module_say_the_same_on_two_workers(
    cluster, workers, make_spec, distil, tmp_path, scheme, stage
):
    """The average, deeper layers and MESA, or a peer: three micro-batches a step, so that one rank has padding."""
    mean = {"name": "mean", "source": "ema", "view": "shifted", "mode": "spatial", "loss_type": "MSE"}
    deep = {"teacher": "deep", "teacher_module_name": "blocks.1", "student_module_name": "blocks.0", "criterion": "CS"}
    backbone = {"type": "test_resnet", "output_dim": [4]}
    peer = {"name": "peer", "source": "peer", "model": {"backbone": backbone}, "mode": "logits", "loss_type": "KL"}

    def of_scheme(spec: dict) -> dict:
        """``spec`` with the tiny ViT and the teachers of ``scheme``."""
        own = [mean, {"name": "deep", "source": "deeper"}] if scheme == "self" else [peer]
        more = {"bindings": [deep], "mesa": {"weight": 0.5, "start_step": 1}} if scheme == "self" else {"alpha": 0.5}
        vit = spec["distill"]["teacher"][1]
        spec["distill"] |= {"scheme": scheme, "teacher": [vit, *own], **more}
        return spec | {"teachers": {"vit": {"num_cpus": 0.5}}}

    size = {"max_steps": 4, "enable_ema": True, "ema_decay": 0.5}
    alone = distil(of_scheme(make_spec(tmp_path / "local", {"train": size})))
    both = distil(of_scheme(workers(tmp_path / "ray", 2, zero_stage=stage, **size)))
    terms = {"loss/peer/peer_logits"} if scheme == "online" else {"loss/mean/spatial", "loss/deep/binding_0"}
    for mine, theirs in zip(*([e for e in t.events if isinstance(e, StepEvent)] for t in (both, alone)), strict=True):
        for name in terms | ({"loss/mesa"} if scheme == "self" and mine.step > 1 else set()) | {"loss"}:
            # Binding CS is 1 - cosine of nearly parallel vectors: in fp32 exact to the spacing of numbers at 1.
            noise = 2 * torch.finfo(torch.float32).eps
            assert mine.metrics[name] == pytest.approx(theirs.metrics[name], rel=1e-3, abs=noise), (mine.step, name)
    assert verified_state(both.result.checkpoint).world_size == 2
