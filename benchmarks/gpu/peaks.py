"""Peaks of a device: published ones by its name, and measured ones of matrix products, copies and exchanges."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.gpu.interleave import wait
from radioplat.cluster.gpu_kinds import kind_of

SOURCE = "NVIDIA's data sheets: dense bf16 (half of the figure with sparsity), at the boost clock"
GEMM_SIDE, CPU_GEMM_SIDE = 8192, 512
COPY_BYTES, CPU_COPY_BYTES = 1 << 28, 1 << 22
REPEATS = 10


def describe(device: str) -> dict[str, Any]:
    """Return name, memory, software and published peak of the device."""
    gpu = device == "cuda"
    properties = torch.cuda.get_device_properties(0) if gpu else None
    name = torch.cuda.get_device_name(0) if gpu else platform.processor() or platform.machine()
    return {
        "kind": device,
        "name": name,
        "memory_bytes": properties.total_memory if properties else None,
        "published_bf16_flops": kind_of(name).peak if gpu else None,
        "published_source": SOURCE,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cores": len(os.sched_getaffinity(0)),
    }


def measure(device: str, seconds: float) -> dict[str, Any]:
    """Return measured peaks: TFLOP/s of a matrix product, GB/s of copies and of an all-reduce.

    Copies are null on a CPU, the all-reduce is null with one rank.
    """
    gpu = device == "cuda"
    each = seconds / 6
    found: dict[str, Any] = {}
    for kind, dtype in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
        found[f"gemm_{kind}_tflops"] = _gemm(device, dtype, GEMM_SIDE if gpu else CPU_GEMM_SIDE, each)
    found["gemm_note"] = "fp32 is TF32 on a GPU"
    for way in ("h2d", "d2h"):
        for memory in ("pinned", "pageable"):
            found[f"{way}_{memory}_gb_s"] = _copy(way, memory == "pinned", each) if gpu else None
    found["all_reduce_busbw_gb_s"] = _all_reduce(device, each)
    return found


def _gemm(device: str, dtype: torch.dtype, side: int, seconds: float) -> float:
    torch.set_float32_matmul_precision("high")
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    return 2 * side**3 / _once(lambda: a @ b, device, seconds) / 1e12


def _copy(way: str, pinned: bool, seconds: float) -> float:
    host = torch.empty(COPY_BYTES, dtype=torch.uint8, pin_memory=pinned).zero_()
    there = torch.zeros(COPY_BYTES, dtype=torch.uint8, device="cuda")
    source, target = (host, there) if way == "h2d" else (there, host)
    return COPY_BYTES / _once(lambda: target.copy_(source, non_blocking=True), "cuda", seconds) / 1e9


def _all_reduce(device: str, seconds: float) -> float | None:
    """Return the bandwidth by NCCL's convention: bytes a second times 2 (n - 1) / n; None with one rank."""
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    if ranks == 1:
        return None
    size = COPY_BYTES if device == "cuda" else CPU_COPY_BYTES
    values = torch.zeros(size // 4, device=device)
    taken = _fixed(lambda: dist.all_reduce(values), device)
    return size / taken * 2 * (ranks - 1) / ranks / 1e9


def _once(call: Callable[[], object], device: str, seconds: float) -> float:
    """Return the seconds of a call: the median of :data:`REPEATS` blocks, together about ``seconds`` long."""
    for _ in range(3):
        call()
    wait(device)
    begin = time.perf_counter()
    call()
    wait(device)
    count = max(1, round(seconds / REPEATS / max(time.perf_counter() - begin, 1e-6)))
    return _blocks(call, count, device)


def _fixed(call: Callable[[], object], device: str) -> float:
    """Return the seconds of a call that all ranks make: each makes the same number of calls."""
    for _ in range(3):
        call()
    return _blocks(call, 3, device)


def _blocks(call: Callable[[], object], count: int, device: str) -> float:
    taken = []
    for _ in range(REPEATS):
        wait(device)
        begin = time.perf_counter()
        for _ in range(count):
            call()
        wait(device)
        taken.append((time.perf_counter() - begin) / count)
    return statistics.median(taken)
