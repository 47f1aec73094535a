"""Find the cause of the end of a worker group, from Ray Train's errors and the remaining nodes."""

from __future__ import annotations

from collections.abc import Iterator

from radioplat.common.out_of_memory import says_out_of_memory
from radioplat.tracking.attempts.attempts import CAUSES
from radioplat.training.guards.pause import Paused

_OOM = ("OutOfMemory", "node running low on memory", "MemoryError")  # names of exceptions, and Ray's words
_LONG = 400  # characters of a message


def cause_of(error: BaseException | None, lost_nodes: list[str], dead_workers: list[int]) -> tuple[str, str]:
    """Return one of :data:`~radioplat.tracking.attempts.attempts.CAUSES`, and a description of one line.

    An error may name its cause in an attribute ``restart_cause``. Otherwise a dead process is the cause before any
    exception, because the remaining ranks raise errors about the broken connection to it.

    Args:
        error: the error that ended the group.
        lost_nodes: ids of lost nodes that ran workers.
        dead_workers: ranks whose processes have died.
    """
    failed = list(failures(error))
    paused = [failure for _, failure in failed if isinstance(failure, Paused)]
    if paused:  # only the rank that got the request has the reason in its detail
        most = max(paused, key=lambda failure: len(failure.detail))
        return most.cause, most.detail
    for _, failure in failed:
        named = getattr(failure, "restart_cause", None)
        if named in CAUSES:
            return named, _line(failure)
    if lost_nodes:
        return "node_lost", f"lost node {', '.join(node[:8] for node in lost_nodes)}"
    for rank, failure in failed:
        if says_out_of_memory(text := _text(failure)) or any(sign in text for sign in _OOM):
            return "oom", f"rank {rank}: {_line(failure)}"
    if type(error).__name__ == "PreemptionError":
        return "drained", "the preemption deadline passed before the step ended"
    dead = sorted({*dead_workers, *(rank for rank, failure in failed if _is_death(failure))})
    if dead:
        reason = next((_line(failure) for rank, failure in failed if rank in dead), "")
        return "worker_killed", f"rank {', '.join(map(str, dead))} is gone{': ' + reason if reason else ''}"
    for rank, failure in failed:
        return "error", f"rank {rank}: {_line(failure)}"
    return ("error", _line(error)) if error is not None else ("unknown", "")


def failures(error: BaseException | None) -> Iterator[tuple[int, BaseException]]:
    """Yield each failed rank with its error; for a dead rank, the error that explains the death."""
    for rank, failure in sorted((getattr(error, "worker_failures", None) or {}).items()):
        yield rank, getattr(failure, "health_check_failure", None) or failure


def is_planned(error: BaseException | None) -> bool:
    """Return whether the workers ended on request."""
    return any(isinstance(failure, Paused) for _, failure in failures(error))


def has_died(error: BaseException | None) -> bool:
    """Return True if the error reports the end of a worker's process."""
    return any(_is_death(failure) for _, failure in failures(error))


def _is_death(failure: BaseException) -> bool:
    return any(kind.__name__ == "RayActorError" for kind in type(failure).__mro__)


def _text(failure: BaseException) -> str:
    return f"{type(failure).__name__} {failure}"


def _line(failure: BaseException) -> str:
    """Format type and message as one line."""
    text = " ".join(str(failure).split())
    return f"{type(failure).__name__}: {text[:_LONG]}"
