"""The average against its closed form, on real engines; what a checkpoint keeps of it, and who reads it."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from radioplat.errors import WeightsError
from radioplat.models.heads import HeadArchitecture
from radioplat.models.student.checkpoint import load_student
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.models.weights.model_format import EMA_FILE, has_average, read_average
from radioplat.optim.optimizer import MOMENTS
from radioplat.spec.loading.load import load_spec
from radioplat.training.checkpoints.checkpoint import OPTIMIZER, RunState, commit, newest, snapshot
from radioplat.training.engine.batchnorm_state import BatchNormStatistics
from radioplat.training.engine.ema import Ema
from radioplat.training.engine.registry import build_engine

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")
ALL = [
    ("fp32", None),
    ("bf16", None),
    ("fp32", 0),
    ("fp32", 1),
    ("fp32", 2),
    ("fp32", 3),
    ("bf16", 1),
    ("bf16", 2),
    ("bf16", 3),
]
DECAY = 0.7


class Tiny(nn.Module):
    """With BatchNorm, and one frozen parameter that has no average."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Linear(8, 4))
        self.frozen = nn.Parameter(torch.ones(4), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Mean squared distance to a fixed target, fp32."""
        y = self.body(x.to(self.body[0].weight.dtype)) * self.frozen
        return (y.float() - x[:, :4].sin()).square().mean()


class Run:
    """An engine, its running state and its average, driven as the worker drives them."""

    def __init__(
        self, precision: str, stage: int | None, optimizer: str, begin: dict | None = None, steps: int = 0
    ) -> None:
        cut = {"engine": "ddp"} if stage is None else {"zero_stage": stage}
        train = {"precision": precision, **cut}
        optim = {"optim": optimizer, "lr": 0.02, "weight_decay": 0.1}
        spec = load_spec({"train": {**train, "optim": optim}, "dataset": {"batch_size": 5}})
        self.moments = MOMENTS[spec.train.optim.optim]
        torch.manual_seed(0)
        self.module = Tiny()
        if begin:
            self.module.load_state_dict({**self.module.state_dict(), **begin["weights"]}, strict=True)
        self.running = BatchNormStatistics(self.module)
        self.engine = build_engine(self.module, spec, 1)
        if begin:
            state = {**begin["weights"], **begin["moments"]}
            self.engine.load_full_state(self.names, self.moments, state, steps)
        self.running.sync()
        self.ema = Ema(self.engine, self.names, self.running.state_dict, DECAY)
        if begin:
            self.ema.load_state_dict(begin["average"])

    @property
    def names(self) -> dict[str, nn.Parameter]:
        return {n: p for n, p in self.module.named_parameters() if p.requires_grad}

    def step(self, step: int) -> None:
        loss = self.engine(torch.randn(5, 6, generator=torch.Generator().manual_seed(step)))
        self.engine.backward(loss, last=True)
        self.engine.step()
        self.running.step()
        self.ema.step()

    def state(self) -> dict[str, dict[str, torch.Tensor]]:
        whole = self.engine.full_state(self.names, self.moments)
        weights = {k: v for k, v in whole.items() if k in self.names}
        counts = {k: v.clone() for k, v in self.module.state_dict().items() if "num_batches" in k}
        exact = {k: v.clone() for k, v in self.running.state_dict().items()}
        moments = {k: v for k, v in whole.items() if k not in self.names}
        return {"weights": {**weights, **exact, **counts}, "moments": moments, "average": self.ema.state_dict()}


def assert_same(found: dict, expected: dict) -> None:
    assert set(found) == set(expected)
    for part in expected:
        assert set(found[part]) == set(expected[part])
        for name, value in expected[part].items():
            assert torch.equal(found[part][name].float(), value.float()), f"{part} {name}"


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize(("precision", "stage"), ALL)
def test_closed_form(precision, stage):
    """``decay^n w_0 + (1 - decay) sum decay^(n-i) w_i``, of the fp32 weights."""
    run = Run(precision, stage, "adamw")
    seen = [run.state()["weights"]]
    expected = {"average": {n: v for n, v in seen[0].items() if n in run.names or "running" in n}}
    assert_same({"average": run.ema.state_dict()}, expected)
    for step in range(4):
        run.step(step)
        seen.append(run.state()["weights"])
    found = run.ema.state_dict()
    assert set(found) == set(run.names) | {"body.1.running_mean", "body.1.running_var"}
    for name, value in found.items():
        shares = [DECAY**4, *((1 - DECAY) * DECAY ** (3 - i) for i in range(4))]
        by_hand = sum(share * state[name].double() for share, state in zip(shares, seen, strict=True))
        torch.testing.assert_close(value.double(), by_hand, rtol=1e-5, atol=1e-6)
        assert value.dtype is torch.float32 and not torch.equal(value, seen[-1][name].float())


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize(
    ("precision", "stage", "optimizer"),
    [
        *((precision, stage, "adamw") for precision, stage in ALL),
        ("fp32", 0, "sgd"),
        ("fp32", 1, "adam"),
        ("fp32", 0, "lamb"),
        ("fp32", 2, "lamb"),
        ("bf16", 3, "lamb"),
        ("fp32", None, "lamb"),
        ("bf16", 1, "fusedlamb"),
    ],
)
def test_a_resumed_run_is_the_uninterrupted_one(precision, stage, optimizer):
    quiet = Run(precision, stage, optimizer)
    for step in range(2):
        quiet.step(step)
    saved = quiet.state()
    kept = copy.deepcopy(saved)
    resumed = Run(precision, stage, optimizer, saved, 2)
    assert_same(resumed.state(), saved)
    for step in range(2, 5):
        quiet.step(step)
        resumed.step(step)
    assert_same(resumed.state(), quiet.state())
    assert_same(saved, kept)


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("stage", [*range(4), None])
def test_looking_at_the_average_before_the_first_step_disturbs_nothing(stage):
    quiet, looked = Run("fp32", stage, "adamw"), Run("fp32", stage, "adamw")
    before = looked.state()
    looked.ema.load_state_dict(before["average"])
    assert not before["moments"] and not looked.state()["moments"]
    for step in range(2):
        quiet.step(step)
        looked.step(step)
        looked.ema.state_dict()
    assert_same(looked.state(), quiet.state())


ARCHITECTURE = StudentArchitecture("test_resnet", heads=(HeadArchitecture("a", 4),))


@pytest.fixture
def folder(tmp_path):
    """A checkpoint with an average that is its weights plus one."""
    torch.manual_seed(0)
    student = Student(ARCHITECTURE)
    average = {n: p.detach() + 1 for n, p in student.named_parameters()}
    parts = (student, student.state_dict(), {}, RunState(3))
    return commit(tmp_path, snapshot("model_epoch_001", *parts, {EMA_FILE: (average, {})}))


def test_a_checkpoint_holds_both(folder):
    plain, averaged, default = load_student(folder, ema=False), load_student(folder, ema=True), load_student(folder)
    for name, parameter in plain.named_parameters():
        assert torch.equal(averaged.state_dict()[name], parameter + 1)
        assert torch.equal(default.state_dict()[name], parameter + 1)
    buffers = {n for n, _ in plain.named_buffers() if n in plain.state_dict()}
    assert buffers and all(torch.equal(averaged.state_dict()[n], plain.state_dict()[n]) for n in buffers)
    assert newest(folder.parent)[1].global_step == 3 and (folder / OPTIMIZER).exists()


def test_a_damaged_average_is_a_damaged_checkpoint(folder):
    file = folder / EMA_FILE
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(WeightsError, match="ema.safetensors is missing or damaged"):
        newest(folder.parent)
    with pytest.raises(WeightsError, match="not the file that was written"):
        load_student(folder)
    assert load_student(folder, ema=False)


def test_without_an_average(tmp_path):
    student = Student(ARCHITECTURE)
    made = commit(tmp_path, snapshot("model_epoch_001", student, student.state_dict(), {}, RunState()))
    assert not has_average(made) and read_average(made) == {}
    assert dataclasses.asdict(load_student(made).architecture) == dataclasses.asdict(student.architecture)
    with pytest.raises(WeightsError, match="has no EMA") as caught:
        load_student(made, "evaluate.checkpoint", ema=True)
    assert caught.value.problems[0].where == "evaluate.checkpoint"


class Operators(TorchDispatchMode):
    """Count operators that would launch kernels: all but views and allocations."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Count one."""
        self.count += not func.is_view and "empty" not in str(func)
        return func(*args, **(kwargs or {}))


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("cut", [{"engine": "ddp"}, {"zero_stage": 2}], ids=["ddp", "ZeRO-2"])
def test_more_parameters_launch_no_more_operators(cut):
    counts = []
    for layers in (2, 9):
        module = nn.Sequential(*(nn.Linear(4, 4) for _ in range(layers)))
        names = dict(module.named_parameters())
        spec = load_spec({"train": {"precision": "fp32", **cut}, "dataset": {"batch_size": 2}})
        engine = build_engine(module, spec, 1)
        ema = Ema(engine, names, dict, DECAY)
        into = {name: torch.zeros_like(parameter) for name, parameter in names.items()}
        with Operators() as operators:
            ema.step()
            ema.copy_into(into)
        counts.append(operators.count)
        assert all(torch.equal(into[name], parameter) for name, parameter in names.items())
        engine.close()
    assert counts[0] == counts[1] < 10
