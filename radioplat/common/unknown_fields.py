"""Find fields in JSON data that the dataclasses of this version do not have."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any


def unknown_fields(raw: Any, kind: Any, path: str = "") -> list[str]:
    """Return the paths of fields in ``raw`` that ``kind`` does not have, including nested dataclasses.

    Args:
        raw: data read from JSON.
        kind: a dataclass, or an annotation: a sequence or mapping of dataclasses, or ``X | None``.
    """
    if dataclasses.is_dataclass(kind):
        if not isinstance(raw, dict):
            return []
        hints = typing.get_type_hints(kind)
        unknown = [f"{path}{name}" for name in raw if name not in hints]
        for name in (name for name in raw if name in hints):
            unknown += unknown_fields(raw[name], hints[name], f"{path}{name}.")
        return unknown
    unknown = []
    for inner in typing.get_args(kind):
        if dataclasses.is_dataclass(inner) and isinstance(raw, list):
            unknown += [f for i, item in enumerate(raw) for f in unknown_fields(item, inner, f"{path[:-1]}[{i}].")]
        elif dataclasses.is_dataclass(inner) and isinstance(raw, dict):
            mapping = typing.get_origin(kind) is dict
            pairs = ((f"{path}{key}.", item) for key, item in raw.items()) if mapping else [(path, raw)]
            unknown += [f for at, item in pairs for f in unknown_fields(item, inner, at)]
    return unknown
