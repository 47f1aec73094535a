"""Checks of process limits: file descriptors, processes, locked memory, shared memory."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

from radioplat.cluster.doctor.finding import Finding, fail, ok, warn

_GB = 1e9
FILES_LEAST, FILES = 4096, 65536  # each of Ray's processes has a socket to each other
_PROCESSES = 8192
SHARED_LEAST = 1 * _GB
STORE_SHARE = 0.3  # of the memory: Ray's default size of its object store in /dev/shm


def limits(has_gpu: bool) -> Iterator[Finding]:
    """Check ``ulimit`` and shared memory."""
    yield descriptors(resource.getrlimit(resource.RLIMIT_NOFILE))
    soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    if soft != resource.RLIM_INFINITY and soft < _PROCESSES:
        yield warn("processes (ulimit -u)", f"{soft}", f"ulimit -u {_PROCESSES}: Ray starts hundreds of threads.")
    else:
        yield ok("processes (ulimit -u)", _limit(soft))
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if has_gpu and soft != resource.RLIM_INFINITY:
        hint = "ulimit -l unlimited (Docker: --ulimit memlock=-1:-1): NCCL pins memory for InfiniBand and EFA."
        yield warn("locked memory (ulimit -l)", _limit(soft, "B"), hint)
    else:
        yield ok("locked memory (ulimit -l)", _limit(soft, "B"))
    state = os.statvfs("/dev/shm")
    yield shared_memory(state.f_frsize * state.f_blocks, memory())


def descriptors(limit: tuple[int, int]) -> Finding:
    """Check the soft and hard limit of open files."""
    soft, hard = limit
    name, value = "open files (ulimit -n)", _limit(soft)
    hint = f"ulimit -n {FILES} (Docker: --ulimit nofile={FILES}:{FILES}) before `ray start`."
    if soft != resource.RLIM_INFINITY and soft < FILES_LEAST:
        return fail(name, value, hint)
    return warn(name, value, hint) if soft != resource.RLIM_INFINITY and soft < FILES else ok(name, value)


def shared_memory(size: float, whole: float) -> Finding:
    """Check the size of /dev/shm (bytes) against the machine's or container's memory (bytes)."""
    name, value = "shared memory (/dev/shm)", f"{size / _GB:.1f} GB of {whole / _GB:.0f} GB memory"
    need = STORE_SHARE * whole
    hint = f"Docker: --shm-size={need / _GB:.0f}g; Kubernetes: an emptyDir with medium: Memory at /dev/shm."
    if size < SHARED_LEAST:
        return fail(name, value, hint)
    if size < need:
        return warn(name, value, f"Ray's object store goes to slow disk beyond it. {hint}")
    return ok(name, value)


def memory() -> float:
    """Return the memory of this container or machine, in bytes."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            return min(whole, int(Path(path).read_text()))
        except (OSError, ValueError):  # "max": no limit
            continue
    return whole


def _limit(value: int, unit: str = "") -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else f"{value}{' ' + unit if unit else ''}"
