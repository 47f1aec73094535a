"""Fields of plain data that a dataclass of this version does not have."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any


def unknown_fields(raw: Any, kind: Any, path: str = "") -> list[str]:
    """Paths of the fields in ``raw`` that ``kind`` does not have, those of nested dataclasses too.

    Args:
        raw: what JSON holds.
        kind: a dataclass, or the annotation of a field: sequences and mappings of dataclasses, ``X | None``.
    """
    if dataclasses.is_dataclass(kind):
        if not isinstance(raw, dict):
            return []
        hints = typing.get_type_hints(kind)
        found = [f"{path}{name}" for name in raw if name not in hints]
        for name in (name for name in raw if name in hints):
            found += unknown_fields(raw[name], hints[name], f"{path}{name}.")
        return found
    found = []
    for inner in typing.get_args(kind):
        if dataclasses.is_dataclass(inner) and isinstance(raw, list):
            found += [f for i, item in enumerate(raw) for f in unknown_fields(item, inner, f"{path[:-1]}[{i}].")]
        elif dataclasses.is_dataclass(inner) and isinstance(raw, dict):
            mapping = typing.get_origin(kind) is dict
            pairs = ((f"{path}{key}.", item) for key, item in raw.items()) if mapping else [(path, raw)]
            found += [f for at, item in pairs for f in unknown_fields(item, inner, at)]
    return found
