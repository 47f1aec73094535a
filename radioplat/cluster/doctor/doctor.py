"""Run all checks of ``radioplat doctor``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from radioplat.cluster.doctor.finding import Finding, warn
from radioplat.cluster.doctor.gpu import driver, gpu
from radioplat.cluster.doctor.limits import limits
from radioplat.cluster.doctor.ports import ports
from radioplat.cluster.doctor.storage import storage
from radioplat.cluster.doctor.versions import constraints_file, versions


def doctor(results: Path) -> list[Finding]:
    """Return the findings of all checks; nothing is changed.

    Args:
        results: results folder of runs.
    """
    installed_driver = driver()
    checks: list[Callable[[], Iterator[Finding]]] = [
        lambda: versions(constraints_file()),
        lambda: gpu(installed_driver),
        lambda: limits(has_gpu=installed_driver is not None),
        lambda: storage(results),
        ports,
    ]
    return [finding for check in checks for finding in _guarded(check)]


def _guarded(check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """Run a check; an exception becomes a warning, so that the other checks run."""
    try:
        yield from check()
    except Exception as error:
        yield warn("a check", f"failed: {type(error).__name__}: {error}", "Please report it.")
