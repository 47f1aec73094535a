"""Weights, moments and an average, gathered in a thread while later steps change them; :func:`work` is one rank."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from forked import load

from radioplat.common import collectives
from radioplat.optim.optimizer import MOMENTS
from radioplat.training.engine import whole_tensors
from radioplat.training.engine.engine import WEIGHTS
from radioplat.training.loop import process_group

zero = load(Path(__file__).with_name("zero_cases.py"))
CASES = [
    *(zero.Case("fp32", stage) for stage in range(4)),
    *(zero.Case("bf16", stage) for stage in (1, 2, 3)),
    zero.Case("fp32", 2, offload=True),
    *zero.DDP,
    zero.Case("fp32", 1, optimizer="lamb"),
    zero.Case("fp32", 0, optimizer="sgd"),
    zero.Case("fp32", 0, optimizer="lamb", engine="ddp"),
]


def take_step(run: Any, number: int) -> None:
    """One step of a run, which moves weights, moments and average."""
    rank, world = collectives_place()
    for place in range(rank, zero.MICRO, world):
        x = torch.randn(5, 6, generator=torch.Generator().manual_seed(10 * number + place))
        run.backward(x, place + world >= zero.MICRO)
    run.ema.step()


def collectives_place() -> tuple[int, int]:
    """This rank, and the number of ranks."""
    return torch.distributed.get_rank(), torch.distributed.get_world_size()


def on_every_rank(run: Any, values: dict[str, list[torch.Tensor]]) -> dict[str, dict[str, torch.Tensor]]:
    """Whole values of each kind by another way: one message to all ranks, in the training thread."""
    shapes, found = run.engine.shapes(run.names), {}
    for kind, tensors in values.items():
        found[kind] = {name: torch.zeros(shape) for name, shape in shapes.items()}
        run.engine.copy_values(run.names, tensors, found[kind])
    return found


def differences(case: Any) -> list[str]:
    """What of two saves is not, bit for bit, what the ranks had at the steps of the saves; on rank 0."""
    run, wrong = zero.start(case), []
    channel = collectives.open_channel(timedelta(minutes=5))
    whole = run.engine.whole_tensors(run.names, channel)
    whole.reserve([WEIGHTS, *MOMENTS[case.optimizer], "ema"])
    for number in (0, 3):
        take_step(run, number)
        values = {**run.engine.values(MOMENTS[case.optimizer]), "ema": run.ema.shards()}
        expected = on_every_rank(run, values)
        whole.copy(values)
        found: list[Any] = []
        take_step(run, number + 1)  # before anything is sent, and while it is
        thread = threading.Thread(target=lambda found=found: found.append(whole.gather()))
        thread.start()
        take_step(run, number + 2)
        thread.join(60)
        later = on_every_rank(run, values)
        if torch.distributed.get_rank():
            wrong += [] if found == [{}] else ["something is gathered on another rank"]
            continue
        for kind, state in expected.items():
            assert set(found[0][kind]) == set(state), (kind, set(found[0][kind]) ^ set(state))
            wrong += [f"{kind} {name}" for name, value in state.items() if not torch.equal(found[0][kind][name], value)]
            assert not all(torch.equal(later[kind][name], value) for name, value in state.items()), "nothing moved"
    run.engine.close()
    collectives.close_channel(channel)
    return wrong


def work(folder: Path) -> None:
    """Every case, in messages of few elements."""
    torch.set_num_threads(1)
    process_group.join("gloo")
    whole_tensors.BUCKET = 37
    found = {str(case): differences(case) for case in CASES}
    torch.save(found, folder / f"{torch.distributed.get_rank()}.pt")
