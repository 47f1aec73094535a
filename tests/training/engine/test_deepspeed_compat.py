"""What leaves an engine and goes into another one must continue the run as if nothing had happened."""

from __future__ import annotations

import functools
import subprocess
import sys

import pytest
import torch
from torch import nn

from radioplat.optim.optimizer import MOMENTS
from radioplat.spec.loading.load import load_spec
from radioplat.spec.schema.root import Spec
from radioplat.training.engine.registry import build_engine

pytestmark = [pytest.mark.usefixtures("process_group"), pytest.mark.filterwarnings("ignore::FutureWarning")]
MICRO = 2  # micro-batches of a step
ALL = [("fp32", 0), ("fp32", 1), ("fp32", 2), ("fp32", 3), ("bf16", 1), ("bf16", 2), ("bf16", 3)]
# Offloaded: the stage is negative. What a resumed offloaded run does, test_two_ranks.py looks at.
OFFLOADED = [("fp32", -1), ("fp32", -2), ("fp32", -3), ("bf16", -1), ("bf16", -2), ("bf16", -3)]
DDP = [("fp32", None), ("bf16", None)]  # the other engine, which has no stages
COMBINATIONS = pytest.mark.parametrize(("precision", "stage"), [*ALL, *OFFLOADED, *DDP])


class Tiny(nn.Module):
    """Decayed and undecayed parameters, so two groups; one frozen, one buffer, as a student may have."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 4))
        self.frozen = nn.Parameter(torch.ones(4), requires_grad=False)
        self.register_buffer("offset", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Mean squared distance to a fixed target, fp32."""
        y = self.body(x.to(self.body[0].weight.dtype)) * self.frozen + self.offset
        return (y.float() - x[:, :4].sin()).square().mean()


@functools.cache
def spec_of(precision: str, stage: int | None, optimizer: str) -> Spec:
    cut = {"engine": "ddp"} if stage is None else {"zero_stage": abs(stage), "offload": stage < 0}
    train = {"precision": precision, **cut}
    optim = {"optim": optimizer, "lr": 0.01, "weight_decay": 0.1}
    return load_spec({"train": {**train, "optim": optim}, "dataset": {"batch_size": 5}})


class Run:
    """An engine over a :class:`Tiny`, and what the worker does with it."""

    def __init__(
        self, precision: str, stage: int | None, optimizer: str, weights: dict[str, torch.Tensor] | None = None
    ) -> None:
        spec = spec_of(precision, stage, optimizer)
        self.moments = MOMENTS[spec.train.optim.optim]
        torch.manual_seed(0)
        self.module = Tiny()
        if weights is not None:
            self.module.load_state_dict(weights, strict=False)
        self.engine = build_engine(self.module, spec, MICRO)

    @property
    def names(self) -> dict[str, nn.Parameter]:
        return {n: p for n, p in self.module.named_parameters() if p.requires_grad}

    def backward(self, step: int, place: int, factor: float = 1.0) -> None:
        x = torch.randn(5, 6, generator=torch.Generator().manual_seed(10 * step + place))
        loss = self.engine(x) * factor
        self.engine.backward(loss, last=place == MICRO - 1)
        self.engine.step()

    def train(self, start: int, stop: int) -> None:
        for step in range(start, stop):
            for group in self.engine.param_groups:
                group["lr"] = 0.01 / (1 + step)
            for place in range(MICRO):
                self.backward(step, place)

    def state(self) -> dict[str, torch.Tensor]:
        return self.engine.full_state(self.names, self.moments)

    @classmethod
    def resumed(
        cls, precision: str, stage: int | None, optimizer: str, state: dict[str, torch.Tensor], steps: int
    ) -> Run:
        run = cls(precision, stage, optimizer, state)
        run.engine.load_full_state(run.names, run.moments, state, steps)
        return run


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], **tolerance: float) -> None:
    assert set(found) == set(expected)
    for name, value in expected.items():
        torch.testing.assert_close(
            found[name], value, **(tolerance or {"rtol": 0, "atol": 0}), msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize(
    ("precision", "stage", "optimizer"),
    [
        *((precision, stage, "adamw") for precision, stage in (*ALL, *DDP)),
        ("fp32", 0, "sgd"),
        ("fp32", None, "sgd"),
        ("bf16", None, "adam"),
        ("fp32", 2, "sgd"),
        ("bf16", 3, "sgd"),
        ("fp32", 1, "adam"),
        *((precision, stage, "lamb") for precision, stage in (*ALL, *DDP)),
        ("fp32", 0, "fusedlamb"),
    ],
)
def test_a_resumed_run_is_the_uninterrupted_one(precision, stage, optimizer):
    quiet = Run(precision, stage, optimizer)
    quiet.train(0, 2)
    saved = quiet.state()
    expected = {f"{n}.{m}" for n in quiet.names for m in quiet.moments} | set(quiet.names)
    assert set(saved) == expected and all(v.dtype is torch.float32 for v in saved.values())
    resumed = Run.resumed(precision, stage, optimizer, saved, 2)
    assert_same(resumed.state(), saved)
    kept = {k: v.clone() for k, v in saved.items()}
    quiet.train(2, 5)
    resumed.train(2, 5)
    assert_same(saved, kept)  # no view of the engine
    assert_same(resumed.state(), quiet.state())
    # It did train, and the weights in use follow the fp32 ones.
    assert not torch.equal(quiet.state()["body.0.weight"], saved["body.0.weight"])


@pytest.mark.parametrize(
    ("precision", "first", "second"),
    [
        *[("fp32", 0, 3), ("fp32", 3, 2), ("bf16", 3, 1), ("bf16", 2, 3)],
        *[("fp32", None, 2), ("fp32", 3, None), ("bf16", None, 1), ("bf16", 2, None)],
    ],
)
def test_a_state_loads_at_another_stage(precision, first, second):
    quiet = Run(precision, first, "adamw")
    quiet.train(0, 2)
    resumed = Run.resumed(precision, second, "adamw", quiet.state(), 2)
    assert_same(resumed.state(), quiet.state())
    quiet.train(2, 4)
    resumed.train(2, 4)
    # Stages sum gradients in another order, in bf16 with another rounding.
    assert_same(
        resumed.state(),
        quiet.state(),
        **({"rtol": 1e-5, "atol": 1e-6} if precision == "fp32" else {"rtol": 1e-2, "atol": 1e-4}),
    )


@COMBINATIONS
def test_before_the_first_step_there_are_weights_and_no_moments(precision, stage):
    run = Run(precision, stage, "adamw")
    torch.manual_seed(0)
    fresh = Tiny().to(torch.bfloat16 if precision == "bf16" else torch.float32)
    state = run.state()
    assert set(state) == set(run.names)
    assert_same(state, {n: p.detach().float() for n, p in fresh.named_parameters() if p.requires_grad})
    resumed = Run.resumed(precision, stage, "adamw", state, 0)
    run.train(0, 2)
    resumed.train(0, 2)
    assert_same(resumed.state(), run.state())


@COMBINATIONS
def test_discarded_gradients_leave_no_trace(precision, stage, after=2):
    """A step is given up after its first micro-batch, in the middle of a run."""
    quiet, skipping = (Run(precision, stage, "adamw") for _ in range(2))
    for run in (quiet, skipping):
        run.train(0, after)
    before = skipping.state()
    skipping.backward(99, 0, factor=1e3)
    skipping.engine.discard_gradients()
    assert_same(skipping.state(), before)
    for run in (quiet, skipping):
        run.train(after, after + 2)
    assert_same(skipping.state(), quiet.state())


@COMBINATIONS
def test_discarded_nan_gradients_leave_no_trace(precision, stage):
    quiet, skipping = (Run(precision, stage, "adamw") for _ in range(2))
    skipping.backward(99, 0, factor=float("nan"))
    skipping.engine.discard_gradients()
    for run in (quiet, skipping):
        run.train(0, 2)
    assert_same(skipping.state(), quiet.state())


def test_all_engines_train_alike():
    """fp32: every stage gives the plain optimizer's numbers, up to the order of sums."""
    torch.manual_seed(0)
    module = Tiny()
    decayed = [p for p in module.parameters() if p.requires_grad and p.ndim > 1]
    plain = [p for p in module.parameters() if p.requires_grad and p.ndim == 1]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}])
    for step in range(3):
        for group in optimizer.param_groups:
            group["lr"] = 0.01 / (1 + step)
        optimizer.zero_grad()
        for place in range(MICRO):
            x = torch.randn(5, 6, generator=torch.Generator().manual_seed(10 * step + place))
            (module(x) / MICRO).backward()
        torch.nn.utils.clip_grad_norm_(decayed + plain, 2.0)
        optimizer.step()
    for stage in (*range(4), None):
        run = Run("fp32", stage, "adamw")
        run.train(0, 3)
        state = run.state()
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                torch.testing.assert_close(state[name], parameter.detach(), rtol=1e-4, atol=1e-5)


def test_an_engine_starts_without_inductor(tmp_path):
    """DeepSpeed imports its optimizer Muon for every engine, which would compile functions: seconds at each start."""
    program = """
import sys, torch, deepspeed
from radioplat.training.engine.deepspeed_compat import init_distributed
torch.distributed.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/store", rank=0, world_size=1)
init_distributed("gloo")
for stage in range(4):
    module = torch.nn.Linear(4, 4)
    config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": stage}}
    engine, *_ = deepspeed.initialize(model=module, optimizer=torch.optim.AdamW(module.parameters()), config=config)
    engine.backward(engine(torch.ones(1, 4)).sum())
    engine.step()
from deepspeed.runtime import compiler
assert compiler.compile() is torch.compile
print("torch._inductor.compile_fx" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-1] == "False"
