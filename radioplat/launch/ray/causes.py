"""Why a worker group ended, by the errors of Ray Train and the remaining nodes of the cluster."""

from __future__ import annotations

from collections.abc import Iterator

from radioplat.tracking.attempts.attempts import CAUSES
from radioplat.training.guards.pause import Paused

_OOM = ("out of memory", "OutOfMemory", "node running low on memory", "MemoryError", "Cannot allocate memory")
_LONG = 400  # characters of a message


def cause_of(error: BaseException | None, lost_nodes: list[str], dead_workers: list[int]) -> tuple[str, str]:
    """Return one of :data:`~radioplat.tracking.attempts.attempts.CAUSES`, and a line for people.

    An error names its own cause in an attribute ``restart_cause``. Ranks that outlive another fail with the broken
    connection to it: what died counts before what raised.

    Args:
        error: what the group ended with.
        lost_nodes: ids of nodes that held workers and are gone.
        dead_workers: ranks whose processes are gone.
    """
    failed = list(failures(error))
    paused = [failure for _, failure in failed if isinstance(failure, Paused)]
    if paused:  # the rank that was asked knows the reason
        most = max(paused, key=lambda failure: len(failure.detail))
        return most.cause, most.detail
    for _, failure in failed:
        named = getattr(failure, "restart_cause", None)
        if named in CAUSES:
            return named, _line(failure)
    if lost_nodes:
        return "node_lost", f"lost node {', '.join(node[:8] for node in lost_nodes)}"
    for rank, failure in failed:
        if any(sign in _text(failure) for sign in _OOM):
            return "oom", f"rank {rank}: {_line(failure)}"
    if type(error).__name__ == "PreemptionError":
        return "drained", "the notice ran out before the step ended"
    dead = sorted({*dead_workers, *(rank for rank, failure in failed if _is_death(failure))})
    if dead:
        reason = next((_line(failure) for rank, failure in failed if rank in dead), "")
        return "worker_killed", f"rank {', '.join(map(str, dead))} is gone{': ' + reason if reason else ''}"
    for rank, failure in failed:
        return "error", f"rank {rank}: {_line(failure)}"
    return ("error", _line(error)) if error is not None else ("unknown", "")


def failures(error: BaseException | None) -> Iterator[tuple[int, BaseException]]:
    """Yield ranks with the error of each; that of a dead one has the reason inside."""
    for rank, failure in sorted((getattr(error, "worker_failures", None) or {}).items()):
        yield rank, getattr(failure, "health_check_failure", None) or failure


def is_planned(error: BaseException | None) -> bool:
    """Return whether the workers left on purpose."""
    return any(isinstance(failure, Paused) for _, failure in failures(error))


def has_died(error: BaseException | None) -> bool:
    """Return whether the error itself reports the end of a worker's process."""
    return any(_is_death(failure) for _, failure in failures(error))


def _is_death(failure: BaseException) -> bool:
    return any(kind.__name__ == "RayActorError" for kind in type(failure).__mro__)


def _text(failure: BaseException) -> str:
    return f"{type(failure).__name__} {failure}"


def _line(failure: BaseException) -> str:
    """Type and message, as one line."""
    text = " ".join(str(failure).split())
    return f"{type(failure).__name__}: {text[:_LONG]}"
