"""Errors a user can act on: what was wrong, where, and what to do about it."""

from __future__ import annotations

import os
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

    Carries one or more :class:`Problem`; ``str(error)`` is one line a problem.

    Attributes:
        agreed: whether every worker of a run raises it at one step; starting them again would only meet it again.
    """

    agreed = False

    def __init__(self, *problems: Problem | str, where: str = "", hint: str = "") -> None:
        self.problems: list[Problem] = [p if isinstance(p, Problem) else Problem(p, where, hint) for p in problems]
        super().__init__("\n".join(str(p) for p in self.problems))

    # Ray and multiprocessing pickle exceptions by their constructor arguments.
    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), tuple(self.problems))


class SpecError(RadioplatError):
    """The spec asks for something that cannot be: an unknown or missing field, or values that contradict."""


class DataError(RadioplatError):
    """A shard, an image or an index cannot be used."""


class StorageError(RadioplatError):
    """A store of samples gave no answer for ``dataset.storage_timeout_s``; starting again would only wait again."""

    restart_cause = "storage"


class WeightsError(RadioplatError):
    """A checkpoint cannot be read safely, or does not fit the architecture it was named for."""


class PlacementError(RadioplatError):
    """The cluster can never offer what the spec asks for."""


class ClusterError(RadioplatError):
    """A cluster cannot be joined: it does not answer, wants another token, runs other versions, or is elsewhere."""


class TrainingError(RadioplatError):
    """The run itself had to stop: non-finite losses under policy ``fail``, a broken order, a lost pool."""


class TeacherSilent(TrainingError):
    """A teacher hangs: its features for one micro-batch never came. ``train.non_finite`` says what follows."""


class OutOfMemory(TrainingError):
    """A GPU's or a host's memory was used up in forward or backward; the next start takes smaller pieces."""

    restart_cause = "oom"


class Stopped(SystemExit):
    """The command was asked to leave and has saved what there was: exit status 75 (``EX_TEMPFAIL`` of sysexits.h).

    The same command goes on. As an exit of the process it is no failure that any part of a run might handle.
    """

    restart_cause = "stopped"
    code: int

    def __init__(self) -> None:
        super().__init__(os.EX_TEMPFAIL)

    def __str__(self) -> str:
        return "told to stop by SIGTERM; the same command goes on"


class EngineError(RadioplatError):
    """An ONNX file or a TensorRT engine could not be built."""


def ours_in(error: BaseException) -> RadioplatError | None:
    """The error of ours inside what Ray raises, wherever it wrapped it."""
    seen: list[BaseException] = [error]
    while seen:
        current = seen.pop()
        cause = getattr(current, "cause", None)
        # What a task of Ray raises is of our class too, with a traceback for a message and the error itself inside.
        if isinstance(current, RadioplatError) and not isinstance(cause, BaseException):
            return current
        inner = [current.__cause__, cause, *getattr(current, "worker_failures", {}).values()]
        seen += [e for e in inner if isinstance(e, BaseException)]
    return None
