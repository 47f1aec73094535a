"""Two workers against one: LAMB's norms, the average and what a checkpoint holds, at every ZeRO stage.

Run as a script this file is one of the workers.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from radioplat.distill import ds_compat
from radioplat.distill.ema import Ema
from radioplat.distill.engine import build_engine
from radioplat.distill.optimizer import MOMENTS
from radioplat.spec.load import load_spec

MICRO, STEPS, HALF = 2, 20, 10
SHARDED = [("fp32", 1), ("fp32", 2), ("fp32", 3), ("bf16", 1)]
STAGES = {1: [("fp32", 0), ("bf16", 1)], 2: SHARDED}
CHANGES = [("fp32", 3, 0), ("fp32", 1, 2)]  # saved by two workers at one stage, gone on with by one at another


class Tiny(nn.Module):
    """Odd sizes, so that the cut between two ranks goes through parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 9), nn.LayerNorm(9), nn.GELU(), nn.Linear(9, 7), nn.Linear(7, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Mean squared distance to a fixed target, fp32."""
        y = self.body(x.to(self.body[0].weight.dtype))
        return (y.float() - x[:, :3].sin()).square().mean()


def run(
    precision: str, stage: int, world: int, rank: int, begin: dict | None = None
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Weights, moments and ``<name>.ema`` after ten and after twenty steps; from ``begin`` on after twenty."""
    train = {"precision": precision, "zero_stage": stage, "clip_grad_norm": 0.3}
    optim = {"optim": "lamb", "lr": 0.01, "weight_decay": 0.1}
    spec = load_spec({"train": {**train, "optim": optim}, "dataset": {"batch_size": 5}})
    moments = MOMENTS[spec.train.optim.optim]
    torch.manual_seed(0)
    module = Tiny()
    if begin:
        module.load_state_dict({k: v for k, v in begin.items() if k in module.state_dict()})
    engine = build_engine(module, spec, MICRO // world)
    names = dict(module.named_parameters())
    if begin:
        ds_compat.load_full_state(engine, names, moments, begin, HALF)
    ema = Ema(engine, names, {}, 0.8)
    if begin:
        ema.load({k.removesuffix(".ema"): v for k, v in begin.items() if k.endswith(".ema")})
    states = []
    for step in range(HALF if begin else 0, STEPS):
        for place in range(rank, MICRO, world):
            x = torch.randn(5, 6, generator=torch.Generator().manual_seed(10 * step + place))
            loss = engine(x)
            engine.set_gradient_accumulation_boundary(place + world >= MICRO)
            engine.backward(loss)
            engine.step()
        assert engine.was_step_applied()
        ema.step({})
        if step + 1 in (HALF, STEPS):
            whole = ds_compat.full_state(engine, names, moments)
            states.append(whole | {f"{name}.ema": value for name, value in ema.whole().items()})
    return states[0], states[-1]


def work(folder: Path) -> None:
    """One worker: its stages; where it is alone, also the second halves of what two have begun."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    ds_compat.init_distributed("gloo")
    found = {}
    for precision, stage in STAGES[world]:
        print(precision, stage, flush=True)
        half, end = run(precision, stage, world, rank)
        found[f"{precision} {stage} half"], found[f"{precision} {stage} end"] = half, end
    if world == 1:
        theirs = torch.load(folder / "2.pt")
        for precision, old, new in CHANGES:
            _, found[f"{precision} {old} to {new}"] = run(precision, new, 1, 0, theirs[f"{precision} {old} half"])
    if rank == 0:
        torch.save(found, folder / f"{world}.pt")


def start(folder: Path, world: int) -> dict[str, dict[str, torch.Tensor]]:
    """What ``world`` workers find."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    group = dict(WORLD_SIZE=world, LOCAL_WORLD_SIZE=world, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    workers = []
    for rank in range(world):
        place = {name: str(value) for name, value in {**group, "RANK": rank, "LOCAL_RANK": rank}.items()}
        path = os.pathsep.join(p for p in sys.path if p)
        environment = {**os.environ, **place, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, __file__, str(folder)]
        workers.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
    said = []
    for worker in workers:
        try:
            said.append(worker.communicate(timeout=120)[0].decode())
        except subprocess.TimeoutExpired:
            worker.kill()
            said.append(worker.communicate()[0].decode() + "\ntoo slow")
    assert all(worker.returncode == 0 for worker in workers), "\n".join(text[-3000:] for text in said)
    return torch.load(folder / f"{world}.pt")


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict[int, dict[str, dict[str, torch.Tensor]]]:
    folder = tmp_path_factory.mktemp("ranks")
    two = start(folder, 2)
    return {2: two, 1: start(folder, 1)}


def assert_close(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], precision: str) -> None:
    """Up to the order of sums, and in bf16 to the rounding of weights and gradients in use."""
    assert set(found) == set(expected) and any(name.endswith(".ema") for name in expected)
    for name, value in expected.items():
        if precision == "fp32":
            torch.testing.assert_close(found[name], value, rtol=1e-3, atol=2e-5, msg=lambda m, n=name: f"{n}: {m}")
        elif ".exp_avg" not in name:
            distance = float((found[name] - value).norm() / value.norm())
            assert distance < 0.02, f"{name}: {distance}"


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("precision", "stage"), SHARDED)
def test_two_workers_are_one_at_any_stage(found, precision, stage):
    plain = found[1]["fp32 0 end" if precision == "fp32" else "bf16 1 end"]
    assert_close(found[2][f"{precision} {stage} end"], plain, precision)
    start = found[1]["fp32 0 half"]
    assert not torch.allclose(plain["body.0.weight"], start["body.0.weight"], atol=1e-3)
    assert not torch.allclose(plain["body.0.weight"], plain["body.0.weight.ema"], atol=1e-3)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("precision", "old", "new"), CHANGES)
def test_one_goes_on_where_two_stopped(found, precision, old, new):
    assert_close(found[1][f"{precision} {old} to {new}"], found[1]["fp32 0 end"], precision)


if __name__ == "__main__":
    work(Path(sys.argv[1]))
