"""Every field of the spec with its type, default, range and meaning."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from radioplat.errors import SpecError
from radioplat.spec.import_paths import NameOrImportPath
from radioplat.spec.loading.fields import strip_optional
from radioplat.spec.ranges import Range, range_of
from radioplat.spec.reference.comments import ADDITION, comment_of, docstring_of, words_of
from radioplat.spec.schema.root import Spec

ITEM, KEY = "[]", "NAME"  # in a path: an entry of a list, and the user's name of an entry of a mapping
REQUIRED = "???"  # the default of a field that a spec must have
_TYPES = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


@dataclass(frozen=True)
class Field:
    """One field of the spec.

    Attributes:
        path: for example ``train.optim.lr``, ``distill.teacher[].mode``, ``teachers.NAME.num_cpus``.
        kind: its annotation.
        default: its value where the spec leaves it out, as a plain value; ``???`` for a required field.
        limits: of a number, or of the numbers in it.
        text: its meaning.
        addition: whether TAO's spec lacks it, or has it with another meaning.
    """

    path: str
    kind: Any
    default: Any
    limits: Range | None
    text: str
    addition: bool

    @property
    def section(self) -> type | None:
        """The dataclass of a section, or of the entries of a list or mapping of sections; else None."""
        inner = _inner(self.kind)
        return typing.cast(type, inner) if dataclasses.is_dataclass(inner) else None

    @property
    def is_section(self) -> bool:
        """Whether its value is one section, not a list or mapping of them."""
        return dataclasses.is_dataclass(strip_optional(self.kind))

    @property
    def words(self) -> dict[str, str]:
        """The words of an enumeration, with their meanings."""
        inner = _inner(self.kind)
        return words_of(inner) if isinstance(inner, type) and issubclass(inner, Enum) else {}

    @property
    def accepts(self) -> str:
        """Its valid values in words."""
        kind = strip_optional(self.kind)
        text = _described(kind)
        if self.limits and str(self.limits):
            text += f", {'' if _inner(kind) is kind else 'each '}{self.limits}"
        return text if kind is self.kind else f"{text}; or null: unset"


def _inner(kind: Any) -> Any:
    """Return the annotation of the innermost entries of a list or mapping."""
    kind = strip_optional(kind)
    args = typing.get_args(kind)
    return _inner(args[-1]) if typing.get_origin(kind) in (list, dict) and args else kind


def _described(kind: Any) -> str:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is list:
        return f"a list of {_several(args[0])}"
    if origin is dict:
        return f"a mapping of {_several(args[0])} to {_several(args[1])}"
    if dataclasses.is_dataclass(kind):
        return "a section"
    if isinstance(kind, type) and issubclass(kind, Enum):
        own = ", or package.module:name of your own" if issubclass(kind, NameOrImportPath) else ""
        return " | ".join(str(member.value) for member in kind) + own
    return _TYPES.get(kind, "any value")


def _several(kind: Any) -> str:
    return {int: "whole numbers", float: "numbers", str: "texts", Any: "values"}.get(kind) or (
        "sections" if dataclasses.is_dataclass(kind) else _described(kind)
    )


@functools.cache
def all_fields() -> dict[str, Field]:
    """Return all fields of the spec by path, in the schema's order; a section comes before its fields."""
    return {field.path: field for field in _of_section(Spec, "")}


def _of_section(section: type, path: str) -> Iterator[Field]:
    hints = typing.get_type_hints(section)
    for field in dataclasses.fields(section):
        if typing.get_origin(hints[field.name]) is typing.ClassVar:
            continue
        at, kind = f"{path}.{field.name}" if path else field.name, hints[field.name]
        comment, inner = comment_of(section, field.name), _inner(kind)
        documented = isinstance(inner, type) and (dataclasses.is_dataclass(inner) or issubclass(inner, Enum))
        text = comment.removeprefix(ADDITION).strip() or (docstring_of(inner) if documented else "")
        addition = comment.startswith(ADDITION) or text.startswith(ADDITION)
        yield Field(at, kind, _default(field), range_of(field), text.removeprefix(ADDITION).strip(), addition)
        if dataclasses.is_dataclass(inner):
            below = {list: at + ITEM, dict: f"{at}.{KEY}"}.get(typing.get_origin(strip_optional(kind)), at)
            yield from _of_section(typing.cast(type, inner), below)


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default.name if isinstance(field.default, Enum) else field.default
    assert field.default_factory is not dataclasses.MISSING
    made = field.default_factory()
    return {} if dataclasses.is_dataclass(made) else made


def find_fields(name: str) -> list[Field]:
    """Return the field at the path ``name`` with the fields below it, or else all fields whose name is ``name``.

    Args:
        name: as in an override; ``distill.teacher.0.mode``, ``distill.teacher[0].mode`` and ``distill.teacher.mode``
            are the same field.

    Raises:
        SpecError: there is none; with the nearest.
    """
    fields, wanted = all_fields(), _parts(name)
    if wanted:
        exact = {path for path in fields if _same(_parts(path), wanted)}
        if len(wanted) > 1:  # an entry of a mapping by the user's name
            exact |= {path for path in fields if _parts(path) == wanted[:-1] and f"{path}.{KEY}" in _entries()}
        tops = exact or {path for path in fields if len(wanted) == 1 and _parts(path)[-1] == wanted[0]}
        below = tuple(top + mark for top in tops for mark in (".", ITEM))
        if tops:
            return [field for path, field in fields.items() if path in tops or path.startswith(below)]
    names = {_parts(path)[-1] for path in fields}
    last = difflib.get_close_matches(wanted[-1] if wanted else "", names, 1)
    same = [path for path in fields if _parts(path)[-1] in last]
    near = difflib.get_close_matches(name, fields, 1, cutoff=0.8) or difflib.get_close_matches(name, same, 1, cutoff=0)
    hint = f"Did you mean {near[0]}?" if near else "radioplat default_specs prints all fields."
    raise SpecError("there is no such field", where=name, hint=hint)


@functools.cache
def _entries() -> set[str]:
    """Return the paths of entries of mappings of sections."""
    return {path[: path.index(KEY) + len(KEY)] for path in all_fields() if f".{KEY}." in path}


def _parts(path: str) -> list[str]:
    """Return the parts of a path without the indices of lists."""
    parts = path.replace("[", ".").replace("]", "").split(".")
    return [part for part in parts if part and not part.isdecimal()]


def _same(parts: list[str], wanted: list[str]) -> bool:
    """Return whether ``wanted`` names the same field; any text stands for the user's name of an entry."""
    return len(parts) == len(wanted) and all(a in (b, KEY) for a, b in zip(parts, wanted, strict=True))
