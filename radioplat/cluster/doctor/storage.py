"""Checks of disk space for results and Ray's spilled objects, and of the clock."""

from __future__ import annotations

import ctypes
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from radioplat.cluster.doctor.finding import Finding, fail, ok, warn

_GB = 1e9
LEAST, ENOUGH = 1 * _GB, 20 * _GB  # a checkpoint of a small student; several of a large one
FULL = 0.95  # share of a disk above which Ray stops spilling (local_fs_capacity_threshold)
SKEW_S = 5.0
_TIME_ERROR = 5  # adjtimex(2): the clock is not synchronised


def storage(results: Path) -> Iterator[Finding]:
    """Check disks and the clock.

    Args:
        results: a ``results_dir``; it need not exist yet.
    """
    yield from results_folder(results)
    spill = Path(os.environ.get("RAY_TMPDIR") or os.environ.get("RAY_TEMP_DIR") or tempfile.gettempdir())
    yield spill_disk(str(spill), *shutil.disk_usage(spill))
    yield clock()


def results_folder(results: Path) -> Iterator[Finding]:
    """Check that a run can write to ``results``, the free space, and the clock of that storage."""
    folder = next(path for path in (results.absolute(), *results.absolute().parents) if path.exists())
    probe = folder / f".radioplat-doctor-{uuid.uuid4().hex}"
    try:
        before = time.time()
        probe.write_bytes(b"?")
        skew = probe.stat().st_mtime - (before + time.time()) / 2
        probe.unlink()
    except OSError as error:
        yield fail("results_dir", f"{folder}: {error.strerror}", "Choose a folder that this user may write.")
        return
    free = shutil.disk_usage(folder).free
    space = f"{folder}: {free / _GB:.1f} GB free"
    hint = "Free some space, or keep fewer checkpoints (train.keep_last, keep_best, keep_every)."
    yield (
        fail("results_dir", space, hint)
        if free < LEAST
        else (warn("results_dir", space, hint) if free < ENOUGH else ok("results_dir", space))
    )
    if abs(skew) > SKEW_S:
        hint = "Set both by NTP: leases compare file times with this machine's clock."
        yield warn("clock of the storage", f"{skew:+.1f} s from this machine's", hint)
    else:
        yield ok("clock of the storage", f"{skew:+.2f} s from this machine's")


def spill_disk(folder: str, total: int, used: int, free: int) -> Finding:
    """Check the disk with Ray's sockets, logs, and objects that do not fit into memory."""
    space = f"{folder}: {used / total:.0%} used, {free / _GB:.0f} GB free"
    hint = (
        "Ray does not use a disk that is 95 % full: free some space, or `ray start --temp-dir` on another (short path)."
    )
    if used / total >= FULL:
        return fail("disk of Ray's objects", space, hint)
    return warn("disk of Ray's objects", space, hint) if free < ENOUGH else ok("disk of Ray's objects", space)


def clock() -> Finding:
    """Check with adjtimex(2), which changes nothing, that the clock is synchronised."""
    buffer = (ctypes.c_long * 64)()  # struct timex, whose first int, modes, is 0; maxerror is its fourth long, us
    state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(buffer))
    if state < 0:
        return warn("clock", "the kernel does not report whether it is synchronised", "Look at `timedatectl`.")
    if state == _TIME_ERROR:
        return warn("clock", "not synchronised", "Start chrony or systemd-timesyncd: TLS, tokens and logs need it.")
    return ok("clock", f"synchronised, within {buffer[3] / 1e6:.2g} s")
