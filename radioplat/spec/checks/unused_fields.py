"""Problems that several checks report: fields without effect, and unknown teachers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from radioplat.errors import Problem


def unused_fields(section: Any, names: Iterable[str], where: str, message: str, hint: str) -> Iterator[Problem]:
    """Yield a problem for each field of ``section`` that differs from its default.

    Args:
        section: a dataclass of the spec.
        names: of the fields to compare.
        where: field path of the section.
        message: why these fields have no effect.
        hint: advice; ``{name}`` stands for the field.
    """
    default = type(section)()
    for name in names:
        if getattr(section, name) != getattr(default, name):
            yield Problem(message, f"{where}.{name}", hint.format(name=name))


def unknown_teacher(name: str, known: Iterable[str], where: str) -> Iterator[Problem]:
    """Yield a problem if no teacher has this name."""
    if name not in known:
        yield Problem(f"no teacher is called {name!r}", where, f"Teachers: {', '.join(known) or 'none'}.")
