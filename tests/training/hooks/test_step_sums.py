"""Sums of a step over micro-batches and ranks, whose names no rank knows in advance."""

from __future__ import annotations

import json
import math

import pytest
import torch
import torch.distributed as dist
from forked import run_ranks
from hypothesis import given
from hypothesis import strategies as st

from radioplat.training.hooks.step_sums import LOSS, StepSums

CPU = torch.device("cpu")


def scalars(**values: float) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(value) for name, value in values.items()}


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=9), st.floats(0.125, 1, width=16))
def test_losses_are_added_as_python_adds_their_float64_values(values, share):
    sums = StepSums(CPU)
    for number, value in enumerate(values):
        sums.add(scalars(loss=value), share, number)
    sums.start()
    sums.finish()
    expected = 0.0
    for value in values:
        expected += share * value
    assert sums.totals == {LOSS: {"loss": expected}} and sums.not_finite == []


def test_padding_is_checked_but_does_not_count():
    sums = StepSums(CPU)
    sums.add(scalars(loss=1.0, other=2.0), 1.0, 0)
    sums.add(scalars(loss=math.nan, other=5.0), 1.0, -1)
    sums.start()
    sums.finish()
    assert sums.totals == {LOSS: {"loss": 1.0, "other": 2.0}} and sums.not_finite == ["loss"]
    assert sums.not_finite_in(-1) == ["loss"] and sums.not_finite_in(0) == [] and sums.not_finite_in(7) == []


def test_a_name_that_no_rank_has_in_a_step_is_absent_from_it():
    sums = StepSums(CPU)
    for losses in (scalars(a=1.0, b=2.0), scalars(a=3.0), scalars(b=0.0)):
        sums.begin()
        sums.add(losses, 1.0, 0)
        sums.count("hooks", {"n": 1})
        sums.start()
        sums.finish()
        assert sums.totals == {LOSS: {name: float(value) for name, value in losses.items()}, "hooks": {"n": 1.0}}


def work() -> None:
    """Each rank has names of its own in some steps; print what both know."""
    dist.init_process_group("gloo")
    rank, sums, found = dist.get_rank(), StepSums(CPU), []
    sent = []
    reduce = dist.all_reduce
    dist.all_reduce = lambda *given, **named: sent.append(1) or reduce(*given, **named)
    for step in range(4):
        sums.begin()
        losses = {"loss": 1.0 + rank, f"of_{rank}": 0.5} if step else {"loss": 0.25}
        if step == 3 and rank == 1:
            losses["loss"] = math.inf
        for number in range(2):
            sums.add(scalars(**losses), 0.5, number)
        sums.count("held", {str(rank): 10.0 * rank})
        sums.start()
        sums.finish()
        found.append([sums.totals, sums.not_finite, len(sent)])
        sent.clear()
    print(json.dumps(found), flush=True)


def test_ranks_with_different_names_agree():
    first, second = (json.loads(said.splitlines()[-1]) for said in run_ranks(work, seconds=90))
    assert first == second
    held = {"0": 0.0, "1": 10.0}
    assert first[0] == [{LOSS: {"loss": 0.5}, "held": held}, [], 2]  # sent again, since all names were new
    both = {LOSS: {"loss": 3.0, "of_0": 0.5, "of_1": 0.5}, "held": held}
    assert first[1] == [both, [], 2] and first[2] == [both, [], 1]
    assert first[3][1:] == [["loss"], 1] and first[3][0][LOSS]["loss"] == math.inf


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_the_sums_are_those_of_the_cpu():
    found = []
    for device in (CPU, torch.device("cuda")):
        sums = StepSums(device)
        for step in range(3):
            sums.begin()
            for number in range(4):
                sums.add(
                    {name: value.to(device) for name, value in scalars(a=1.5 * step, b=-number).items()}, 0.25, number
                )
            sums.count("hooks", {"n": 2})
            sums.start()
            sums.finish()
        found.append((sums.totals, sums.not_finite))
    assert found[0] == found[1]
