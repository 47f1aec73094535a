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
        what: the checked item (key of the JSON output).
        said: the observed state (key of the JSON output).
        hint: advice; empty if nothing is to be done.
    """

    what: str
    level: Level
    said: str
    hint: str = ""


def ok(what: str, said: str) -> Finding:
    """Return a finding without a problem."""
    return Finding(what, Level.ok, said)


def warn(what: str, said: str, hint: str) -> Finding:
    """Return a finding that does not prevent runs."""
    return Finding(what, Level.warn, said, hint)


def fail(what: str, said: str, hint: str) -> Finding:
    """Return a finding that prevents runs."""
    return Finding(what, Level.fail, said, hint)
