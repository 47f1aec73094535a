"""One line of ``radioplat doctor``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Level(str, Enum):
    """``warn``: runs, but slowly or at a risk; ``fail``: a run will not work."""

    ok = "ok"
    warn = "warn"
    fail = "fail"


@dataclass(frozen=True)
class Finding:
    """What one check found.

    Attributes:
        what: what was looked at.
        said: what is there.
        hint: what to do; empty where nothing is.
    """

    what: str
    level: Level
    said: str
    hint: str = ""


def ok(what: str, said: str) -> Finding:
    """All is well."""
    return Finding(what, Level.ok, said)


def warn(what: str, said: str, hint: str) -> Finding:
    """It runs, but."""
    return Finding(what, Level.warn, said, hint)


def fail(what: str, said: str, hint: str) -> Finding:
    """It will not run."""
    return Finding(what, Level.fail, said, hint)
