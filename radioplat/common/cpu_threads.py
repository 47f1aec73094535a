"""Sharing the cores of one machine between torch and the decode threads of the same process."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

import torch


def decode_threads(workers: int) -> int:
    """Threads that decode: as many as asked, at most half the cores, at least one."""
    return max(1, min(workers, _cores() // 2))


def torch_callers(most: int) -> int:
    """How many threads may compute with torch at once on the CPU: ``most``, or as many as there are cores."""
    return max(1, min(most, _cores()))


@contextlib.contextmanager
def limit_torch_threads(decoders: int, callers: int = 1) -> Iterator[None]:
    """Leave ``decoders`` cores to decoding while the block runs, and share the rest among ``callers`` of torch.

    With more threads than cores OpenMP's threads spin while they wait for one that is not running: an evaluation on two
    cores took nine times as long. ``OMP_NUM_THREADS``, where set, is the user's word and stays.
    """
    before = torch.get_num_threads()
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, min(before, (_cores() - decoders) // callers)))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def share_cores(num_cpus: float, workers: int) -> None:
    """Give torch all cores in a training worker that asked Ray for less than one, ``workers`` of them on this node.

    A share of a core says that others are on the same cores: teachers, which :func:`lower_thread_priority`.
    """
    if num_cpus < 1:
        torch.set_num_threads(max(1, _cores() // workers))


def share_cores_among(processes: int, decoders: int) -> None:
    """Give torch its share of the cores in one of so many processes, beside the decoders of the one they work for."""
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, (_cores() - decoders) // processes))


def lower_thread_priority() -> None:
    """Compute in this thread only while nobody else wants its core, as far as the kernel knows such threads.

    A teacher that shares cores with a student works ahead while that waits, with a thread of its own, and the student
    then has all cores. Side by side the one with the most to do would hold up the others.
    """
    thread = threading.get_native_id()
    os.setpriority(os.PRIO_PROCESS, thread, min(19, os.getpriority(os.PRIO_PROCESS, thread) + 19))


def _cores() -> int:
    return len(os.sched_getaffinity(0))
