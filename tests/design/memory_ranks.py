"""What an engine holds at each ZeRO stage and with ddp, measured in a process of its own, which :func:`work` is."""

from __future__ import annotations

import gc
import json
import os
from pathlib import Path

import torch
from torch import nn

from radioplat.spec.schema.dataset import DatasetConfig
from radioplat.spec.schema.root import Spec
from radioplat.spec.schema.train import EngineName, OptimConfig, OptimizerName, Precision, Reduction, TrainConfig
from radioplat.training.engine.ema import Ema
from radioplat.training.engine.registry import build_engine
from radioplat.training.loop import process_group

# Matrices of more than 100,000 numbers, which stage 3 cuts up, and so many that the cut between two goes through none.
WIDTH, LAYERS = 512, 4
PARAMETERS = LAYERS * WIDTH * WIDTH
DDP, EXACT, EXACT_1 = -1, -2, -3  # instead of a stage: ddp, the same with exact sums, and ZeRO 1 with them
CASES = [
    *(("fp32", stage, "adamw", ema) for stage in range(4) for ema in (False, True)),
    *(("bf16", stage, "adamw", True) for stage in range(4)),
    ("fp32", 2, "sgd", False),
    ("bf16", 1, "sgd", False),
    ("bf16", 3, "lamb", False),
    ("fp32", DDP, "adamw", True),
    ("bf16", DDP, "adamw", True),
    ("bf16", DDP, "sgd", False),
    ("fp32", EXACT, "adamw", False),
    ("bf16", EXACT, "adamw", True),
    ("fp32", EXACT_1, "adamw", True),
    ("bf16", EXACT_1, "adamw", False),
]


class Layers(nn.Module):
    """Nothing but matrices, so that all that is large follows from parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A scalar, fp32."""
        return self.body(x.to(self.body[0].weight.dtype)).float().square().mean()


def config(precision: str, stage: int, optimizer: str, ema: bool) -> TrainConfig:
    """Section ``train`` of a case."""
    optim = OptimConfig(optim=OptimizerName(optimizer))
    cut = {"engine": EngineName.ddp} if stage in (DDP, EXACT) else {"zero_stage": 1 if stage == EXACT_1 else stage}
    if stage in (EXACT, EXACT_1):
        cut["reduction"] = Reduction.exact
    return TrainConfig(precision=Precision(precision), optim=optim, enable_ema=ema, **cut)


def measure(case: tuple[str, int, str, bool]) -> float:
    """Bytes a parameter that live tensors have in the second step, at the end of its first backward."""
    train = config(*case)
    before = set(_live())
    module = Layers()
    engine = build_engine(module, Spec(train=train, dataset=DatasetConfig(batch_size=2)), 2)
    average = Ema(engine, dict(module.named_parameters()), dict, 0.9) if train.enable_ema else None
    found = 0
    for step in range(2):
        for i in range(2):
            engine.backward(engine(torch.randn(2, WIDTH)), last=i == 1)
            if (step, i) == (1, 0):
                found = sum(size for place, size in _live().items() if place not in before)
        engine.step()
        if average is not None:
            average.step()
    engine.close()
    del engine, module, average
    gc.collect()
    return found / PARAMETERS


def _live() -> dict[int, int]:
    """Bytes of every tensor's memory, by where it begins; gradients too, which Python need not have seen yet."""
    gc.collect()
    tensors = [found for found in gc.get_objects() if isinstance(found, torch.Tensor)]
    grads = [tensor.grad for tensor in tensors if tensor.is_leaf and tensor.grad is not None]
    storages = [tensor.untyped_storage() for tensor in (*tensors, *grads) if tensor.device.type == "cpu"]
    return {storage.data_ptr(): storage.nbytes() for storage in storages if storage.nbytes() > 4096}


def work(out: Path, cases: list[tuple[str, int, str, bool]]) -> None:
    """One worker, with torch's variables of a process group; ``out`` gets a list of numbers, one a case."""
    torch.set_num_threads(1)
    process_group.join("gloo")
    gc.freeze()
    found = [measure(case) for case in cases]
    if os.environ["RANK"] == "0":
        out.write_text(json.dumps(found))
