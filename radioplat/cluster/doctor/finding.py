"""The result of one check of ``radioplat doctor``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Level(str, Enum):
    """``warn``: runs work, but slowly or at a risk; ``fail``: runs will not work."""

    ok = "ok"
    warn = "warn"
    fail = "fail"


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        item: the checked item.
        state: its observed state.
        hint: advice; empty if nothing is to be done.
    """

    item: str
    level: Level
    state: str
    hint: str = ""

    def as_json(self) -> dict[str, str]:
        """Return the finding for ``radioplat doctor --json``."""
        return {"what": self.item, "level": self.level.value, "said": self.state, "hint": self.hint}


def ok(item: str, state: str) -> Finding:
    """Return a finding without a problem."""
    return Finding(item, Level.ok, state)


def warn(item: str, state: str, hint: str) -> Finding:
    """Return a finding that does not prevent runs."""
    return Finding(item, Level.warn, state, hint)


def fail(item: str, state: str, hint: str) -> Finding:
    """Return a finding that prevents runs."""
    return Finding(item, Level.fail, state, hint)
