"""Everything that a run carries from step to step is bit for bit the same after a checkpoint, at any size and stage.

Two workers train and save, and one alone loads what they left.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
from contextlib import closing
from pathlib import Path

import pytest
import torch
from forked import run_ranks
from torch import nn

from radioplat.common.exact_sums import ExactSum
from radioplat.losses.target_transforms.moments import MomentSums
from radioplat.training.feed.stage_rests import StageRests

pytestmark = pytest.mark.proof

# What two workers train at one stage; and the (world size, stage) at which it is loaded.
RUNS = {
    "running": ("fp32", 1, [(2, 3), (1, 0), (1, 2)]),  # BatchNorm, target statistics, dispersion, balance, average
    "frozen": ("bf16", 3, [(2, 2), (1, 1)]),  # frozen weights; rounded weights beside fp32 ones
    "spectral": ("fp32", 2, [(1, 0)]),  # the vectors of spectral norms
}


_RUNNING = ("radioplat.training.engine.batchnorm_state", "radioplat.training.targets.running_norm")


def everything(worker) -> dict[str, torch.Tensor | float | str]:
    """All of ``worker``'s state by name, whole, on rank 0; every rank calls it.

    Buffers and whatever the helpers of the loop hold are found by walking, so that new state is found too.
    """
    from deepspeed.runtime.zero import GatheredParameters

    from radioplat.optim.optimizer import MOMENTS
    from radioplat.training.checkpoints.persistence import trainable

    found: dict[str, torch.Tensor | float | str] = {}
    for name, buffer in worker.objective.named_buffers():
        found[f"buffer {name}"] = buffer.clone()
    for name, parameter in worker.objective.named_parameters():
        with GatheredParameters([parameter], enabled=hasattr(parameter, "ds_id")):
            found[f"in use {name}"] = parameter.detach().clone()
    names, optim = trainable(worker.objective), worker.spec.train.optim.optim
    whole = worker.engine.full_state(names, MOMENTS[optim])
    found |= {f"fp32 {name}": tensor for name, tensor in whole.items()}
    for hook in worker.hooks._hooks:
        if hook.name == "ema":
            found |= {f"average {name}": tensor for name, tensor in hook.state_dict().items()}
    walk(worker.hooks.batchnorm, "running", found)
    walk(worker.hooks.targets, "targets", found)
    state = dataclasses.asdict(worker.state)
    own = ("attempt", "starts", "world_size")
    found["state"] = json.dumps({k: v for k, v in state.items() if k not in own}, sort_keys=True)
    return found


def walk(value, path: str, found: dict) -> None:
    """Put every tensor and number below ``value`` into ``found``; modules are walked by their buffers above."""
    if isinstance(value, torch.Tensor):
        found[path] = value.clone()
    elif isinstance(value, (bool, int, float)):
        found[path] = float(value)
    elif isinstance(value, dict):
        for key, inner in value.items():
            walk(inner, f"{path}[{key}]", found)
    elif isinstance(value, (list, tuple)):
        for i, inner in enumerate(value):
            walk(inner, f"{path}[{i}]", found)
    elif isinstance(value, (ExactSum, MomentSums)):
        walk(value.state(), path, found)
    elif type(value).__module__.startswith(_RUNNING):
        for name, inner in vars(value).items():
            walk(inner, f"{path}.{name}", found)
    else:
        assert isinstance(value, (str, type(None), nn.Module)) or type(value).__module__.startswith("radioplat.spec"), (
            f"{path}: {type(value)} is not looked into"
        )


def open_worker(run, rank: int, world: int):
    """A worker as ``run_worker`` makes it, at the newest checkpoint, and the teachers it asks."""
    from radioplat.data.loading.run_data import RunData
    from radioplat.teachers.serving.client import InlineTeacher
    from radioplat.training.accounting.accounts import Accounts
    from radioplat.training.accounting.attempt_clock import AttemptClock
    from radioplat.training.accounting.cost_meter import CostMeter
    from radioplat.training.checkpoints.persistence import Persistence
    from radioplat.training.guards.pause import Pauses
    from radioplat.training.loop.students import Students
    from radioplat.training.loop.trainer import Common, Trainer
    from radioplat.training.watch.phases import Phases
    from radioplat.training.watch.rank_context import RankContext

    clients = {t.name: InlineTeacher(t, run.grids[t.name], "cpu", world) for t in run.teachers}
    persistence = Persistence(run, rank, world)
    meter = CostMeter(clients, run.spec.cluster, persistence.state.teacher_cost)
    state, clock = persistence.state, AttemptClock(run, rank)
    clock.begin(state)
    accounts = Accounts(run, rank, world, state.attempt, state.global_step, on_cluster=False, costs=[meter.costs])
    data, schedule = RunData.load(run.data_dir, run.spec.dataset.train_dataset), run.micro_batch_schedule(world)
    common = Common(run.folder, data, clock, accounts, Pauses(), Phases(), (0, ""), schedule, StageRests(run, {}))
    context = RankContext(rank, world, torch.device("cpu"))

    def build(place: int) -> Trainer:
        return Trainer(run, place, context, persistence, meter, common)

    students = Students(run, common, [0], build, build)
    students.build_engines()
    return students, clients


def train(run, rank: int, world: int) -> dict:
    """All steps from the first to the last, whose checkpoint is then committed; what the worker held then."""
    from radioplat.data.loading.run_data import open_reader
    from radioplat.data.loading.threads import load_micro_batches
    from radioplat.training.feed.feeder import Feeder
    from radioplat.training.feed.prefetch import Prefetch
    from radioplat.training.feed.step_feed import StepFeed

    students, clients = open_worker(run, rank, world)
    schedule = run.micro_batch_schedule(world)
    wanted = [n for step in range(run.total_steps) for n in schedule.of_rank(step, rank)]
    batches = load_micro_batches(open_reader(*run.reader_arguments), iter(wanted), threads=1, prefetch=2)
    feeder = Feeder(batches, clients, run.teachers, 2, run.partitions)
    with closing(students), closing(Prefetch(feeder, run, torch.device("cpu"), on_cluster=False)) as ahead:
        students.train(StepFeed(ahead, 0, lambda step: ahead))
        return everything(students.trainers[0])


def load(run, rank: int, world: int) -> dict:
    """What a worker holds before its first step."""
    students, _ = open_worker(run, rank, world)
    with closing(students):
        (worker,) = students.trainers
        assert worker.state.global_step == run.total_steps
        return everything(worker)


def work(folder: Path) -> None:
    """One worker of the group that the environment names."""
    from radioplat.training.loop import process_group

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    process_group.join("gloo")
    for name, (_, _, loads) in RUNS.items():
        run = pickle.loads((folder / f"{name}.pkl").read_bytes())
        found = {"trained": train(run, rank, world)} if world == 2 else {}
        for size, stage in loads:
            if size == world:
                spec = dataclasses.replace(run.spec, train=dataclasses.replace(run.spec.train, zero_stage=stage))
                found[stage] = load(dataclasses.replace(run, spec=spec), rank, world)
        if rank == 0:
            torch.save(found, folder / f"{name}{world}.pt")


@pytest.fixture(scope="module")
def found(make_spec, weights, tmp_path_factory) -> dict[str, dict]:
    """By run: what was held when it was saved (``trained``), and by (world size, stage) what was held once loaded."""
    from radioplat.design.run import keep_data
    from radioplat.launch.preflight.steps import prepare
    from radioplat.spec.loading.load import load_spec

    folder = tmp_path_factory.mktemp("state")
    for name, (precision, stage, _) in RUNS.items():
        teacher = {
            "model": {"backbone": {"type": "test_vit", "kwargs": {"img_size": 64}}},
            "pretrained_teacher_model_path": str(weights["vit"]), "mode": "combo", "summary_loss_type": "angle",
        }  # fmt: skip
        spec = make_spec(folder / name, {
            "train": {"num_gpus": 2, "max_steps": 3, "precision": precision, "zero_stage": stage},
            "distill": {"teacher": [{"name": "lite0", **teacher}, {"name": "vit", **teacher}], "balance": "adaloss"},
        })  # fmt: skip
        if name == "running":
            spec["model"]["backbone"] = {"type": "test_efficientnet"}
            spec["train"] |= {"enable_ema": True, "ema_decay": 0.5}
            spec["distill"]["target_norm"] = {"type": "phi_s", "fit": "running", "refresh_steps": 2}
        else:
            spec["model"]["backbone"] |= {"spectral_reparam": name == "spectral", "freeze_norm": name == "frozen"}
        run, data = prepare(load_spec(spec), "distill", folder / name / "distill")
        keep_data(run, data)
        (folder / f"{name}.pkl").write_bytes(pickle.dumps(run))
    for world in (2, 1):
        run_ranks(work, folder, world=world, WANDB_MODE="disabled")
    two, one = ({name: torch.load(folder / f"{name}{world}.pt") for name in RUNS} for world in (2, 1))
    return {
        name: {key if key == "trained" else (world, key): state for world, of in ((2, two), (1, one))
               for key, state in of[name].items()}
        for name in RUNS
    }  # fmt: skip


CASES = [(name, *size) for name, (_, _, loads) in RUNS.items() for size in loads]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "world", "stage"), CASES)
def test_bit_for_bit(found, name, world, stage):
    trained, loaded = found[name]["trained"], found[name][world, stage]
    assert set(trained) == set(loaded)
    for place, value in trained.items():
        if isinstance(value, torch.Tensor):
            other = loaded[place]
            assert value.dtype is other.dtype and value.shape == other.shape, place
            assert torch.equal(value, other), f"{place}: {(value.double() - other.double()).abs().max()}"
        else:
            assert value == loaded[place], place


def test_there_was_something_to_lose(found):
    """Each kind of state is among what is compared, and has moved."""
    running, frozen = found["running"]["trained"], found["frozen"]["trained"]
    targets = ("targets._known", "targets._bases")
    for part in (".running_mean", "criteria.lite0/summary", "balance.total", *targets, "average ", "_mean"):
        moved = [v for name, v in running.items() if part in name and isinstance(v, torch.Tensor)]
        assert moved and all(bool(v.count_nonzero()) for v in moved[:1]), part
    names = [name for name in running if name.startswith("fp32 ")]
    assert {name.rpartition(".")[2] for name in names} >= {"exp_avg", "exp_avg_sq", "weight"}
    weights = [n.removeprefix("fp32 ") for n in frozen if n.startswith("fp32 ") and ".exp_avg" not in n]
    used = [n.removeprefix("in use student.") for n in frozen if n.startswith("in use student.")]
    assert set(weights) < set(used)  # the rest is frozen
    assert frozen[f"in use student.{weights[0]}"].dtype is torch.bfloat16
