"""Runs of several seeds in processes side by side, whose standard output is left to the one line of JSON."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from radioplat.common import terminal

Job = tuple[str, int]


def run_seeds(
    run: Callable[[str, int, Path], Any],
    jobs: Sequence[Job],
    folder: Path,
    at_once: int,
    first: Callable[[Path], None] | None = None,
) -> dict[Job, Any]:
    """What ``run(kind, seed, folder)`` gave, by job, ``at_once`` of them at a time, once ``first(folder)`` has ended.

    Both are functions of a module: they are sent to the processes by name.
    """
    found = {}
    with ProcessPoolExecutor(at_once, get_context("spawn"), _all_to_stderr) as pool:
        if first is not None:
            pool.submit(first, folder).result()
        running = {pool.submit(run, *job, folder): job for job in jobs}
        for ended in as_completed(running):
            found[running[ended]] = ended.result()
            terminal.note(f"{len(found)} of {len(jobs)}: {' '.join(map(str, running[ended]))}")
    return found


def _all_to_stderr() -> None:
    """What libraries print goes where progress goes."""
    os.dup2(2, 1)
