"""Kinds of GPUs by their names: whether they multiply bf16, how fast, and their memory."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import torch

BF16_CAPABILITY = (8, 0)  # compute capability of Ampere, the first with bf16 in its tensor cores
_RAY_PREFIX = "accelerator_type:"  # of a node's resource that names its accelerator
# Dense bf16 operations a second (half of the figure with sparsity) at the boost clock, in NVIDIA's data sheets.
_PEAKS = {
    "A10": 125e12,
    "A30": 165e12,
    "A40": 150e12,
    "A100": 312e12,
    "A800": 312e12,
    "L4": 121e12,
    "L40": 181e12,
    "L40S": 362e12,
    "H20": 148e12,
    "H100": 989e12,
    "H800": 989e12,
    "H200": 989e12,
    "GH200": 989e12,
    "B100": 1750e12,
    "B200": 2250e12,
    "GB200": 2500e12,
    "B300": 2500e12,
    "GB300": 2500e12,
}
_BOARDS = {("H100", "PCIE"): 756e12, ("H100", "NVL"): 835e12, ("H200", "NVL"): 835e12}  # slower ones of a chip
# GiB of memory, of a chip with several the most, in NVIDIA's data sheets.
_MEMORY = {
    "A10": 24, "A30": 24, "A40": 48, "A100": 80, "A800": 80, "L4": 24, "L40": 48, "L40S": 48, "H20": 141, "H100": 96,
    "H800": 80, "H200": 141, "GH200": 144, "B100": 192, "B200": 192, "GB200": 192, "B300": 288, "GB300": 288,
    "K80": 12, "P4": 8, "P40": 24, "P100": 16, "V100": 32, "T4": 16,
}  # fmt: skip
_WITHOUT_BF16 = ("K80", "P4", "P40", "P100", "V100", "T4")  # Kepler to Turing


@dataclass(frozen=True)
class GpuKind:
    """A kind of GPU.

    Attributes:
        name: short name if it is known, else as the driver or Ray gives it.
        bf16: whether it multiplies bf16 matrices; None if that is not known.
        peak: bf16 operations a second, a multiplication and an addition being two; None if it is not known.
        memory: bytes, at most; None if it is not known.
    """

    name: str
    bf16: bool | None = None
    peak: float | None = None
    memory: int | None = None


def kind_of(name: str, capability: tuple[int, int] | None = None) -> GpuKind:
    """Return what is known of a GPU with this name.

    Args:
        name: ``NVIDIA H100 80GB HBM3``, as CUDA names it, or ``H100``, as Ray does.
        capability: its compute capability, if it can be asked for.
    """
    words = re.split(r"[^A-Za-z0-9]+", name.upper())
    sizes = (int(size[1]) for word in words if (size := re.fullmatch(r"(\d+)GB?", word)))
    known = next((word for word in words if word in _PEAKS or word in _WITHOUT_BF16), None)
    if capability is not None:
        bf16: bool | None = capability >= BF16_CAPABILITY
    else:
        bf16 = None if known is None else known in _PEAKS
    slower = (peak for (chip, board), peak in _BOARDS.items() if chip == known and board in words)
    memory = next(sizes, _MEMORY.get(known or ""))
    peak = next(slower, _PEAKS.get(known or ""))
    return GpuKind(known or name, bf16, peak, None if memory is None else memory * 2**30)


def kinds_here() -> tuple[GpuKind, ...]:
    """Return the distinct kinds of this machine's GPUs, by name."""
    count = torch.cuda.device_count()
    kinds = {kind_of(torch.cuda.get_device_name(i), torch.cuda.get_device_capability(i)) for i in range(count)}
    return tuple(sorted(kinds, key=lambda kind: kind.name))


def kinds_of_cluster(resources: Iterable[str], of_workers: Iterable[str] = ()) -> tuple[GpuKind, ...]:
    """Return the distinct kinds of a Ray cluster's GPUs, by name; empty if its nodes do not tell them.

    Args:
        resources: names of the cluster's resources; ``accelerator_type:H100`` is one of a node with H100s.
        of_workers: names of the resources that each worker asks for; one of an accelerator leaves only its kind.
    """
    requested = [name for name in of_workers if name.startswith(_RAY_PREFIX)]
    names = {name.removeprefix(_RAY_PREFIX) for name in requested or resources if name.startswith(_RAY_PREFIX)}
    return tuple(kind_of(name) for name in sorted(names) if not name.upper().startswith(("TPU", "AWS", "INTEL")))
