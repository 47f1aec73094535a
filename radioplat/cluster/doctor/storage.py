"""Whether there is room where results and Ray's spilled objects go, and whether this machine's clock is right."""

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
LEAST, ROOM = 1 * _GB, 20 * _GB  # a checkpoint of a small student; several of a large one
FULL = 0.95  # of a disk: beyond it Ray spills no more (local_fs_capacity_threshold)
SKEW_S = 5.0
_TIME_ERROR = 5  # adjtimex(2): the clock is not synchronised


def storage(results: Path) -> Iterator[Finding]:
    """Disks and the clock.

    Args:
        results: a ``results_dir``; it need not be there yet.
    """
    yield from results_folder(results)
    spill = Path(os.environ.get("RAY_TMPDIR") or os.environ.get("RAY_TEMP_DIR") or tempfile.gettempdir())
    yield spill_disk(str(spill), *shutil.disk_usage(spill))
    yield clock()


def results_folder(results: Path) -> Iterator[Finding]:
    """Whether a run can write there, how much, and whether the storage's clock is ours."""
    there = next(path for path in (results.absolute(), *results.absolute().parents) if path.exists())
    probe = there / f".radioplat-doctor-{uuid.uuid4().hex}"
    try:
        before = time.time()
        probe.write_bytes(b"?")
        skew = probe.stat().st_mtime - (before + time.time()) / 2
        probe.unlink()
    except OSError as error:
        yield fail("results_dir", f"{there}: {error.strerror}", "Choose a folder that this user may write.")
        return
    free = shutil.disk_usage(there).free
    said, hint = f"{there}: {free / _GB:.1f} GB free", "Make room, or lower what is kept (train.keep_last and its kin)."
    yield (
        fail("results_dir", said, hint)
        if free < LEAST
        else (warn("results_dir", said, hint) if free < ROOM else ok("results_dir", said))
    )
    if abs(skew) > SKEW_S:
        hint = "Set both by NTP: leases compare times of files, diaries have this machine's."
        yield warn("clock of the storage", f"{skew:+.1f} s from this machine's", hint)
    else:
        yield ok("clock of the storage", f"{skew:+.2f} s from this machine's")


def spill_disk(folder: str, total: int, used: int, free: int) -> Finding:
    """Where Ray puts sockets, logs, and objects for which memory has no room."""
    said = f"{folder}: {used / total:.0%} used, {free / _GB:.0f} GB free"
    hint = "Ray puts nothing on a disk that is 95 % full: make room, or `ray start --temp-dir` on another (short path)."
    if used / total >= FULL:
        return fail("disk of Ray's objects", said, hint)
    return warn("disk of Ray's objects", said, hint) if free < ROOM else ok("disk of Ray's objects", said)


def clock() -> Finding:
    """What the kernel says of the clock: adjtimex(2), which asks and changes nothing."""
    buffer = (ctypes.c_long * 64)()  # struct timex, whose first int, modes, is 0; maxerror is its fourth long, us
    state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(buffer))
    if state < 0:
        return warn("clock", "the kernel does not say whether it is synchronised", "Look at `timedatectl`.")
    if state == _TIME_ERROR:
        return warn("clock", "not synchronised", "Start chrony or systemd-timesyncd: TLS, tokens and diaries need it.")
    return ok("clock", f"synchronised, within {buffer[3] / 1e6:.2g} s")
