"""Statistics of the losses over a step: on one rank or two, in an engine, in a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from forked import load, run_ranks
from safetensors.torch import save_file
from torch import nn

from radioplat.losses.base.criterion import Pointwise
from radioplat.losses.terms.feature import mse
from radioplat.losses.weighting.balance import TeacherBalance
from radioplat.spec.loading.load import load_spec
from radioplat.spec.schema.distill import Balance
from radioplat.training.checkpoints.checkpoint import LOSSES, read_losses
from radioplat.training.engine.loss_statistics import LossStatistics
from radioplat.training.engine.registry import build_engine

ranks = load(Path(__file__).with_name("loss_ranks.py"))
MICRO, STEPS, D, Losses, run_steps = ranks.MICRO, ranks.STEPS, ranks.D, ranks.Losses, ranks.run_steps


def assert_alike(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert set(found) == set(expected) and len(found) == 3 + 5 + 2
    for name, value in expected.items():
        assert value.dtype is torch.float64
        torch.testing.assert_close(found[name], value, rtol=1e-12, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}")


def test_two_ranks_are_one(tmp_path):
    """Two ranks take three micro-batches in two turns, one of them padding."""
    run_ranks(ranks.main, tmp_path)
    alone = run_steps(0, 1).state_dict()
    for rank in range(2):
        assert_alike(torch.load(tmp_path / f"{rank}.pt"), alone)
    # of four steps one is skipped, and one finds the mean direction
    assert alone["criteria.t/summary.samples"] == (STEPS - 2) * (3 * MICRO - 1)
    assert alone["criteria.t/x.directions"] >= 12 and alone["criteria.t/x.tangents"] > 0


def test_what_a_checkpoint_holds_goes_on(tmp_path):
    quiet = run_steps(0, 1).state_dict()
    losses = Losses()
    save_file(run_steps(0, 1, losses, stop=2).state_dict(), tmp_path / LOSSES)
    resumed = Losses()
    LossStatistics(resumed).load_state_dict(read_losses(tmp_path))
    assert_alike(run_steps(0, 1, resumed, start=2).state_dict(), quiet)


def test_what_no_checkpoint_holds_begins_anew(tmp_path):
    assert read_losses(tmp_path) == {}
    losses = Losses()
    state = run_steps(0, 1, losses)
    kept = {n: v for n, v in state.state_dict().items() if "summary" in n}
    kept["criteria.t/x.direction"] = torch.ones(D, dtype=torch.float64)  # half of a statistic is none
    fresh = LossStatistics(Losses())
    fresh.load_state_dict(kept)
    found = fresh.state_dict()
    assert torch.equal(found["criteria.t/summary.direction"], kept["criteria.t/summary.direction"])
    assert not any(value.any() for name, value in found.items() if "summary" not in name)


@pytest.mark.usefixtures("process_group")
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(("precision", "stage"), [("fp32", 0), ("bf16", 1), ("bf16", 3)])
def test_in_an_engine_they_stay_exact(precision, stage):
    train_section = {"precision": precision, "zero_stage": stage}
    losses = Losses()
    state = LossStatistics(losses)
    engine = build_engine(losses, load_spec({"train": train_section, "dataset": {"batch_size": 3}}), MICRO)
    for step in range(STEPS):
        for place in range(MICRO):
            loss = engine(*ranks.micro_batch(step, place))
            engine.backward(loss, last=place == MICRO - 1)
            engine.step()
        state.step(commit=step != 1)
    assert_alike(state.state_dict(), run_steps(0, 1).state_dict())


def test_nothing_to_keep():
    state = LossStatistics(nn.ModuleDict({"a": Pointwise(mse), "b": TeacherBalance(["t"], Balance.fixed)}))
    state.step()
    assert state.state_dict() == {}
