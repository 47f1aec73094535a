"""Checkpoints that a run cannot go on from, and what the user is asked where it would begin again without them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from radioplat import __version__
from radioplat.errors import Problem, WeightsError


@dataclass(frozen=True)
class Unreadable:
    """A folder with a checkpoint's name that cannot be read.

    Attributes:
        path: local, or on an object store.
        step: its global step; None if unknown.
        reason: what is wrong, and in which file.
        torn: files are missing or damaged; else all are whole, and of another version.
    """

    path: str
    step: int | None
    reason: str
    torn: bool

    def __str__(self) -> str:
        return f"{'not whole' if self.torn else 'of another version'}: {self.reason}"

    @property
    def problem(self) -> Problem:
        """For the user."""
        return Problem(str(self), self.path)


class UnreadableCheckpoints(WeightsError):
    """A run would lose what checkpoints hold if it went on without them: the user decides.

    Attributes:
        checkpoints: those that are in the way.
    """

    checkpoints: tuple[Unreadable, ...] = ()


def in_the_way(step: int | None, unreadable: Iterable[Unreadable]) -> list[Unreadable]:
    """Which of ``unreadable`` keep a run from going on.

    A torn one gives way to an older one that is whole; one of another version gives way to newer ones only.

    Args:
        step: of the newest checkpoint that can be read; None where there is none.
    """
    if step is None:
        return list(unreadable)
    return [one for one in unreadable if not one.torn and (one.step is None or one.step > step)]


def check_in_the_way(step: int | None, unreadable: Iterable[Unreadable], where: str) -> None:
    """Ask the user where :func:`in_the_way` finds any.

    Args:
        where: the task's folder.

    Raises:
        UnreadableCheckpoints: it does.
    """
    blocking = list({one.path: one for one in in_the_way(step, unreadable)}.values())
    if blocking:
        begin = "begin anew" if step is None else f"go on at step {step}"
        question = Problem(
            f"radioplat {__version__} cannot read {'this checkpoint' if len(blocking) == 1 else 'these checkpoints'}: "
            f"shall the run {begin} without {'it' if len(blocking) == 1 else 'them'}?",
            where,
            "If not, use the version that wrote what is of another version, restore what is damaged, or choose "
            "another results_dir. If so, train.restart=true does, and keeps the old checkpoints aside.",
        )
        error = UnreadableCheckpoints(*(one.problem for one in blocking), question)
        error.checkpoints = tuple(blocking)
        raise error
