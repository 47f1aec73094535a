"""``radioplat doctor``: whether this machine is fit for a run, before a run finds out."""

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
    """Look at everything; nothing is changed.

    Args:
        results: where runs are to write.
    """
    found = driver()
    checks: list[Callable[[], Iterator[Finding]]] = [
        lambda: versions(constraints_file()),
        lambda: gpu(found),
        lambda: limits(has_gpu=found is not None),
        lambda: storage(results),
        ports,
    ]
    return [finding for check in checks for finding in _guarded(check)]


def _guarded(check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """A machine on which a check itself fails is what a doctor is called for."""
    try:
        yield from check()
    except Exception as error:
        yield warn("a check", f"did not come to an end: {type(error).__name__}: {error}", "Please report it.")
