"""Errors a user can act on: what was wrong, where, and what to do about it."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Problem:
    """One finding about the user's input.

    Attributes:
        message: what was wrong, in one sentence.
        where: the field path (``distill.teacher[0].mode``) or file it concerns; empty if neither applies.
        hint: what to do about it; empty if the message already says so.
    """

    message: str
    where: str = ""
    hint: str = ""

    def __str__(self) -> str:
        head = f"{self.where}: {self.message}" if self.where else self.message
        stop = "" if head.endswith("?") else "."
        return f"{head}{stop} {self.hint}" if self.hint else head


class RadioplatError(Exception):
    """Base of every error that is shown to a user without a traceback.

    Contains one or more :class:`Problem`; ``str(error)`` has one line for each.

    Attributes:
        agreed: whether every worker of a run raises it at the same step; a restart would only raise it again.
    """

    agreed = False

    def __init__(self, *problems: Problem | str, where: str = "", hint: str = "") -> None:
        self.problems: list[Problem] = [p if isinstance(p, Problem) else Problem(p, where, hint) for p in problems]
        super().__init__("\n".join(str(p) for p in self.problems))

    # Ray and multiprocessing pickle exceptions by their constructor arguments.
    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), tuple(self.problems))


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """Return a hint for a wrong name: the nearest of the valid ones if one is near, and all of them."""
    known = list(valid)
    near = difflib.get_close_matches(name, known, 1)
    return (f"Did you mean {near[0]!r}? " if near else "") + (f"Valid: {', '.join(known)}." if known else "")


def problems_of(action: Callable[..., Any], *arguments: Any) -> list[Problem]:
    """Call ``action``, and return the problems of the :class:`RadioplatError` that it raises; [] if it raises none."""
    try:
        action(*arguments)
    except RadioplatError as error:
        return error.problems
    return []


class SpecError(RadioplatError):
    """The spec is invalid: an unknown or missing field, a value out of range, or fields that contradict each other."""


class DataError(RadioplatError):
    """A shard, an image or an index cannot be used."""


class StorageError(RadioplatError):
    """Storage did not answer for ``dataset.storage_timeout_s`` seconds; a restart would only wait as long again."""

    restart_cause = "storage"


class DecoderError(RadioplatError):
    """A process that decodes images cannot be started, or is stopped again and again by something else than images."""


class WeightsError(RadioplatError):
    """A checkpoint cannot be read safely, or does not fit its architecture."""


class PlacementError(RadioplatError):
    """The cluster can never have the resources that the spec asks for."""


class ClusterError(RadioplatError):
    """A cluster cannot be joined: no answer, a wrong token, other versions, or no node on this machine."""


class TrainingError(RadioplatError):
    """Training had to stop: non-finite losses under policy ``fail``, samples out of order, a lost teacher pool."""


class Diverged(TrainingError):
    """The training of one student diverged: losses that are not finite, or that jump again; every rank raises it."""


class TeacherSilent(TrainingError):
    """A teacher did not answer for one micro-batch in time; ``train.non_finite`` decides what happens next."""


class OutOfMemory(TrainingError):
    """Forward or backward ran out of GPU or host memory; the next attempt splits micro-batches further."""

    restart_cause = "oom"


class TeacherOutOfMemory(TrainingError):
    """A teacher's weights or one of its forwards do not fit into memory; smaller pieces of the student do not help."""

    restart_cause = "error"


class Stopped(SystemExit):
    """SIGTERM asked the command to stop, and it has saved a checkpoint: exit status 75 (``EX_TEMPFAIL``).

    The same command continues the run. A ``SystemExit``, so that no handler of ``Exception`` treats it as a failure.
    """

    restart_cause = "stopped"
    code: int

    def __init__(self) -> None:
        super().__init__(os.EX_TEMPFAIL)

    def __reduce__(self) -> tuple[Any, ...]:  # SystemExit's own would pass the exit status to __init__
        return (type(self), ())

    def __str__(self) -> str:
        return "stopped by SIGTERM; the same command continues the run"


class EngineError(RadioplatError):
    """An ONNX file or a TensorRT engine could not be built."""


def wrapped_error(error: BaseException) -> RadioplatError | None:
    """Return the :class:`RadioplatError` that ``error``, raised by Ray, wraps at any depth; None if there is none."""
    remaining: list[BaseException] = [error]
    while remaining:
        current = remaining.pop()
        cause = getattr(current, "cause", None)
        # Ray raises a subclass of the task's error, with a traceback as its message and the error itself as ``cause``.
        if isinstance(current, RadioplatError) and not isinstance(cause, BaseException):
            return current
        inner = [current.__cause__, cause, *getattr(current, "worker_failures", {}).values()]
        remaining += [e for e in inner if isinstance(e, BaseException)]
    return None
