"""Clipping by its definition, on every engine; what fp16 does when gradients overflow."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from deepspeed.accelerator import get_accelerator
from torch import nn

from radioplat.spec.loading.load import load_spec
from radioplat.training.engine.engine import LOSS_SCALE
from radioplat.training.engine.registry import build_engine

pytestmark = [pytest.mark.usefixtures("process_group"), pytest.mark.filterwarnings("ignore::FutureWarning")]
MICRO = 2


class Line(nn.Module):
    """``mean(x w)``: the gradient of a micro-batch is its mean input."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.zeros(6, 3)), nn.Parameter(torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A scalar, fp32."""
        return (x.to(self.weight.dtype) @ self.weight + self.bias).float().mean(0).sum()


def state_of(module: Line, engine: Any, moments: tuple[str, ...] = ()) -> dict[str, torch.Tensor]:
    """What a checkpoint keeps."""
    return engine.full_state(dict(module.named_parameters()), moments)


@pytest.fixture
def half(monkeypatch):
    """DeepSpeed trusts no CPU with fp16, and torch computes it all the same, slowly: so it runs without a GPU."""
    monkeypatch.setattr(get_accelerator(), "is_fp16_supported", lambda: True)


def start(precision: str, stage: int, limit: float, optimizer: str = "sgd", offload: bool = False) -> tuple[Line, Any]:
    """A module and its engine. With SGD without momentum at rate 1 a step is the clipped gradient."""
    optim = {"optim": optimizer, "lr": 1.0, "momentum": 0.0, "weight_decay": 0.0}
    train = {"precision": precision, "zero_stage": stage, "clip_grad_norm": limit, "optim": optim, "offload": offload}
    module = Line()
    return module, build_engine(module, load_spec({"train": train, "dataset": {"batch_size": 4}}), MICRO)


FP16 = [("fp16", stage, offload) for stage in (1, 2, 3) for offload in (False, True)]


@pytest.mark.usefixtures("half")
@pytest.mark.parametrize(
    ("precision", "stage", "offload"),
    [("fp32", 0, False), *((p, s, o) for p in ("fp32", "bf16") for s in (1, 2, 3) for o in (False, True)), *FP16],
)
@pytest.mark.parametrize("limit", [0.0, 0.01, 1.5, 1e3])
def test_the_norm_over_all_parameters_and_micro_batches_is_limited(precision, stage, offload, limit):
    """In fp16 of the gradient itself, not of what the loss scale has made of it."""
    module, engine = start(precision, stage, limit, offload=offload)
    batches = torch.randn(MICRO, 4, 6, generator=torch.Generator().manual_seed(0)).bfloat16().float()
    for place, batch in enumerate(batches):
        engine.backward(engine(batch), last=place == MICRO - 1)
        engine.step()
    slope = batches.mean((0, 1))
    gradient = {"weight": slope[:, None].expand(6, 3), "bias": torch.ones(3)}
    norm = torch.cat([g.flatten() for g in gradient.values()]).norm()
    assert 1.5 < norm < 1e3
    scale = min(1.0, limit / float(norm)) if limit else 1.0
    state = state_of(module, engine)
    tolerance = {"rtol": 1e-4, "atol": 1e-6} if precision == "fp32" else {"rtol": 2e-2, "atol": 1e-3 * scale}
    for name, expected in gradient.items():
        torch.testing.assert_close(state[name], -scale * expected, **tolerance)


def learn(engine: Any, *batches: torch.Tensor) -> bool:
    """One optimizer step; whether it moved the weights."""
    for place, batch in enumerate(batches):
        engine.backward(engine(batch), last=place == len(batches) - 1)
        engine.step()
    return engine.was_step_applied()


@pytest.mark.usefixtures("half")
@pytest.mark.parametrize(("precision", "stage", "offload"), FP16)
def test_an_overflow_moves_no_weight_and_halves_the_scale_which_a_checkpoint_keeps(precision, stage, offload):
    """DeepSpeed forgives the first overflow and halves the scale at the second."""
    moments = ("exp_avg", "exp_avg_sq")
    module, engine = start(precision, stage, 1.0, "adamw", offload)
    small, large = torch.full((4, 6), 0.25), torch.full((4, 6), 2e4)
    assert learn(engine, small, small)
    before = state_of(module, engine, moments)
    assert not learn(engine, small, large) and not learn(engine, large, large)
    after = state_of(module, engine, moments)
    scale = after.pop(LOSS_SCALE)
    assert float(scale[0]) == float(before.pop(LOSS_SCALE)[0]) / 2 == 2**15
    assert set(after) == set(before) and all(torch.equal(after[name], before[name]) for name in before)
    other, resumed = start(precision, 4 - stage, 1.0, "adamw", not offload)
    saved = {**after, LOSS_SCALE: scale}
    resumed.load_full_state(dict(other.named_parameters()), moments, saved, 1)
    assert torch.equal(state_of(other, resumed, moments)[LOSS_SCALE], scale)
    # The two runs now meet the same fate: the next overflow halves again.
    for run in (engine, resumed):
        assert not learn(run, large, large) and float(run.inner.optimizer.loss_scaler.cur_scale) == 2**14


@pytest.mark.usefixtures("half")
@pytest.mark.parametrize("stage", [1, 3])
def test_fp16_gradients_add_up_in_fp32(stage):
    """1 and 2^-12, where fp16 has 11 bits."""
    module, engine = start("fp16", stage, 0.0)
    engine.inner.optimizer.loss_scaler.cur_scale = 1024.0
    ones = torch.ones(4, 6)
    assert learn(engine, ones, ones * 2**-12)
    exact = torch.full((6, 3), -(1 + 2**-12) / 2)
    torch.testing.assert_close(state_of(module, engine)["weight"], exact, rtol=1e-7, atol=0)
