"""A student with quantizers, taught by its float self, at every ZeRO stage."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from forked import load, run_ranks
from torch import nn

from radioplat.common.collectives import broadcast_object
from radioplat.models.heads import HeadArchitecture
from radioplat.models.quantized.architecture import LayerFormats, Quantization
from radioplat.models.quantized.layers import can_be_quantized
from radioplat.models.quantized.quantizer import quantizers
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.spec.loading.load import load_spec
from radioplat.spec.schema.train import OptimConfig
from radioplat.training.engine.cpu_bf16 import arithmetic
from radioplat.training.loop import process_group

zero = load(Path(__file__).parents[2] / "training" / "engine" / "zero_cases.py")

MICRO, STEPS, HALF = 2, 8, zero.HALF
PLAIN = StudentArchitecture(
    "radio_vit_tiny_patch8",
    {"embed_dim": 32, "depth": 2, "num_heads": 2},
    img_size=16,
    heads=(HeadArchitecture("t", summary_dim=12, spatial_dim=10, hidden=16),),
)
FP32 = [zero.Case("fp32", stage) for stage in (0, 3)]  # 1 and 2 are among the others; all: training/engine
BF16 = [zero.Case("bf16", stage) for stage in (1, 3)]
LAMB = [zero.Case("fp32", 3, optimizer="lamb")]
AWAY = [zero.Case("fp32", 2, offload=True)]
MATRIX = [*FP32, *BF16, *LAMB, *AWAY]


def quantized_student() -> Student:
    """Its plain weights, with the ranges of weights as they are, and activations clipped far below what comes."""
    torch.manual_seed(0)
    plain = Student(PLAIN)
    layers = {n: LayerFormats("int4", "int8") for n, m in plain.named_modules() if can_be_quantized(m)}
    layers = {n: f for n, f in layers.items() if n.startswith("backbone.")}
    student = Student(StudentArchitecture(**{**vars(PLAIN), "quantized": Quantization(layers)}))
    student.load_state_dict(plain.state_dict(), strict=False)
    with torch.no_grad():
        for name, quantizer in quantizers(student).items():
            if name.endswith(".weight_quantizer"):
                layer = student.get_submodule(name.rpartition(".")[0])
                quantizer.set_amax(layer.weight.flatten(1).abs().amax(1))
            else:
                quantizer.scale.fill_(0.3 / 127)
    return student


class Module(nn.Module):
    """A student whose map is pulled towards that of its float self."""

    def __init__(self) -> None:
        super().__init__()
        self.student = quantized_student()
        torch.manual_seed(0)
        self.__dict__["teacher"] = Student(PLAIN).eval()  # no part of the module: no optimizer sees it

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Mean squared distance, a scalar in fp32."""
        wanted = frozenset({"summary", "spatial"})
        with torch.no_grad():
            theirs = self.teacher.head("t", self.teacher(images, wanted))
        mine = self.student.head("t", self.student(images, wanted))
        return sum(
            (a.float() - b.float()).square().mean()
            for a, b in ((mine.spatial, theirs.spatial), (mine.summary, theirs.summary))
        )


def images(place: int) -> torch.Tensor:
    """A micro-batch, the same at each step, float32 ``[4, 3, 16, 16]`` in [0, 1]."""
    return torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(place))


def start(case: Any, begin: dict[str, torch.Tensor] | None) -> Any:
    """A run that is about to take its first step, or the one after those of ``begin``."""
    module = Module().eval()  # position crops are draws
    optim = OptimConfig(lr=0.003, weight_decay=0.1)
    begin = begin and {**dict(module.named_buffers()), **begin}
    return zero.Run(case, module, MICRO // dist.get_world_size(), 0.0, optim, begin)


def train(case: Any, begin: dict[str, torch.Tensor] | None = None) -> dict[str, Any]:
    """As :func:`zero_cases.train`."""
    rank, world = dist.get_rank(), dist.get_world_size()
    spec = load_spec(None, [f"train.precision={case.precision}"])
    run, losses, half = start(case, begin), [], begin
    for step in range(HALF if begin else 0, STEPS):
        total = 0.0
        for place in range(rank, MICRO, world):
            with arithmetic(spec, torch.device("cpu")):
                total += run.backward(images(place), place + world >= MICRO)
        run.ema.step()
        losses.append(total)
        if step + 1 == HALF:
            half = run.state()
    mean = torch.tensor(losses, dtype=torch.float64) / MICRO
    dist.all_reduce(mean)
    return {"losses": mean, "half": half, "end": run.state()}


def work(folder: Path) -> None:
    """One of two workers: all cases."""
    torch.set_num_threads(1)
    process_group.join("gloo")
    gc.freeze()
    found = {str(case): train(case) for case in MATRIX}
    if dist.get_rank() == 0:
        torch.save(found, folder / "2.pt")
    broadcast_object(None)


def start_two(folder: Path) -> dict[str, Any]:
    """What two workers find."""
    run_ranks(work, folder)
    return torch.load(folder / "2.pt")
