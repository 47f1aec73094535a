"""The CPU of this machine: its name, its cores shared between torch's threads and decode threads, freed memory."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import platform
import re
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

# Flags of Linux for instructions that add products of 8 bits in 32 bits. A CPU without them adds two in 16 bits.
INT8_UNITS = ("amx_int8", "avx512_vnni", "avx_vnni")
UNITS = (*INT8_UNITS, "amx_bf16", "avx512_bf16", "avx512_fp16", "avx2")  # that decide about INT8 and half precision
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # in malloc.h


def decode_threads(workers: int) -> int:
    """Return the number of decode threads: ``workers``, but at most half the cores, and at least one."""
    return max(1, min(workers, _cores() // 2))


def torch_callers(most: int) -> int:
    """Return the number of threads that may call torch at once on the CPU: ``most``, but at most the cores."""
    return max(1, min(most, _cores()))


def cpu_name(units: Sequence[str]) -> str:
    """Return the name of this CPU, and those of ``units``, flags of Linux such as ``avx512_vnni``, that it has."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    fields = dict(re.findall(r"^(model name|model|flags)\s*: (.*)$", text, re.M))
    present = [unit for unit in units if unit in fields.get("flags", "").split()]
    return f"{fields.get('model name', platform.machine())} ({', '.join([fields.get('model', '?'), *present])})"


def has_int8_units() -> bool:
    """Return whether this CPU adds products of 8 bits without overflow: any ARM, and x86 with VNNI or AMX."""
    return platform.machine() in ("aarch64", "arm64") or any(unit in cpu_name(INT8_UNITS) for unit in INT8_UNITS)


@contextlib.contextmanager
def limit_torch_threads(decoders: int, callers: int = 1, fixed: int | None = None) -> Iterator[None]:
    """During the block, reserve ``decoders`` cores for decoding and divide the others among ``callers`` of torch.

    With more threads than cores, OpenMP threads spin while they wait for one that is not running: an evaluation on two
    cores took nine times as long. Without effect if ``OMP_NUM_THREADS`` is set.

    Args:
        fixed: threads that torch gets whatever the cores and the environment.
    """
    keep_freed_memory()
    before = torch.get_num_threads()
    if fixed is not None:
        torch.set_num_threads(fixed)
    elif "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, min(before, (_cores() - decoders) // callers)))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def share_cores(num_cpus: float, workers: int, fixed: int | None = None) -> None:
    """Limit torch to this worker's share of all cores if it requested less than one CPU from Ray.

    A fraction of a CPU means that teachers run on the same cores; they have :func:`lower_thread_priority`.

    Args:
        num_cpus: CPUs that the worker requested.
        workers: training workers on this node.
        fixed: threads that torch gets instead.
    """
    keep_freed_memory()
    if fixed is not None:
        torch.set_num_threads(fixed)
    elif num_cpus < 1:
        torch.set_num_threads(max(1, _cores() // workers))


def share_cores_among(processes: int, decoders: int) -> None:
    """Limit torch in each of ``processes`` to its share of the cores that ``decoders`` decode threads leave free."""
    keep_freed_memory()
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, (_cores() - decoders) // processes))


@functools.cache
def keep_freed_memory() -> None:
    """Keep large blocks that were freed, for later ones, instead of returning them to the kernel.

    By default glibc takes blocks of more than 32 MiB from the kernel and returns them when they are freed, as torch
    frees each layer's output. The kernel then clears every page at its first use, again for each layer, a large
    part of a convolution's time. Without effect with another allocator; see mallopt(3).
    """
    with contextlib.suppress(OSError, AttributeError):  # no such library, or no such function
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, 2**30)
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)


def lower_thread_priority() -> None:
    """Give the current thread the lowest scheduling priority.

    A teacher that shares cores with a student then computes while the student waits, and does not slow it down.
    """
    thread = threading.get_native_id()
    os.setpriority(os.PRIO_PROCESS, thread, min(19, os.getpriority(os.PRIO_PROCESS, thread) + 19))


def _cores() -> int:
    return len(os.sched_getaffinity(0))
