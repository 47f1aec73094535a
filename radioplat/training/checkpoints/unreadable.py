"""Checkpoints that cannot be read, and the error that asks the user if a run may continue without them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from radioplat import __version__
from radioplat.errors import Problem, WeightsError


@dataclass(frozen=True)
class Unreadable:
    """A folder that has the name of a checkpoint but cannot be read.

    Attributes:
        path: local path or URL.
        step: its global step; None if unknown.
        reason: what is wrong, and in which file.
        torn: True if files are missing or damaged; False if the files are intact but of another version.
    """

    path: str
    step: int | None
    reason: str
    torn: bool

    def __str__(self) -> str:
        return f"{'not whole' if self.torn else 'of another version'}: {self.reason}"

    @property
    def problem(self) -> Problem:
        """The problem as a message for the user."""
        return Problem(str(self), self.path)


class UnreadableCheckpoints(WeightsError):
    """Raised if continuing would lose the progress in unreadable checkpoints; the user must decide.

    Attributes:
        checkpoints: the unreadable checkpoints that keep the run from continuing.
    """

    checkpoints: tuple[Unreadable, ...] = ()


def in_the_way(step: int | None, unreadable: Iterable[Unreadable]) -> list[Unreadable]:
    """Return those of ``unreadable`` that keep a run from continuing.

    A damaged one is ignored if any readable one exists; one of another version only if a readable one has at least as
    many steps.

    Args:
        step: step of the newest readable checkpoint; None if there is none, and then all of them are returned.
    """
    if step is None:
        return list(unreadable)
    return [one for one in unreadable if not one.torn and (one.step is None or one.step > step)]


def check_in_the_way(step: int | None, unreadable: Iterable[Unreadable], where: str) -> None:
    """Raise an error for the user if :func:`in_the_way` returns any checkpoints.

    Args:
        where: the task's folder, for the message.

    Raises:
        UnreadableCheckpoints: there are such checkpoints.
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
