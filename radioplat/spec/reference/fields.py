"""Every field of the spec with its type, default, range and meaning."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import typing
from dataclasses import dataclass
from enum import Enum
from typing import Any

from radioplat.errors import SpecError
from radioplat.spec.import_paths import NameOrImportPath
from radioplat.spec.loading.fields import KEY, Entry, entry_mark, innermost, strip_optional, walk
from radioplat.spec.ranges import Range, range_of
from radioplat.spec.reference.comments import ADDITION, comment_of, docstring_of, words_of
from radioplat.spec.schema.root import Spec

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
        inner = innermost(self.kind)
        return typing.cast(type, inner) if dataclasses.is_dataclass(inner) else None

    @property
    def is_section(self) -> bool:
        """Whether its value is one section, not a list or mapping of them."""
        return dataclasses.is_dataclass(strip_optional(self.kind))

    @property
    def entry(self) -> str:
        """The path of an entry of a list or mapping of sections; of another field its own."""
        return self.path + entry_mark(self.kind) if self.section else self.path

    @property
    def below(self) -> list[Field]:
        """The fields of a section at any depth."""
        return [field for path, field in all_fields().items() if path.startswith(f"{self.entry}.")]

    @property
    def words(self) -> dict[str, str]:
        """The words of an enumeration, with their meanings."""
        inner = innermost(self.kind)
        return words_of(inner) if isinstance(inner, type) and issubclass(inner, Enum) else {}

    @property
    def accepts(self) -> str:
        """Its valid values in words."""
        kind = strip_optional(self.kind)
        text = _described(kind)
        if self.limits and str(self.limits):
            text += f", {'' if innermost(kind) is kind else 'each '}{self.limits}"
        return text if kind is self.kind else f"{text}; or null: unset"


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
    return {entry.path: _documented(entry) for entry in walk(Spec)}


def _documented(entry: Entry) -> Field:
    comment, inner = comment_of(entry.section, entry.field.name), innermost(entry.kind)
    described = isinstance(inner, type) and (dataclasses.is_dataclass(inner) or issubclass(inner, Enum))
    text = comment.removeprefix(ADDITION).strip() or (docstring_of(inner) if described else "")
    addition = comment.startswith(ADDITION) or text.startswith(ADDITION)
    text = text.removeprefix(ADDITION).strip()
    return Field(entry.path, entry.kind, _default(entry.field), range_of(entry.field), text, addition)


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default.name if isinstance(field.default, Enum) else field.default
    assert field.default_factory is not dataclasses.MISSING
    made = field.default_factory()
    return {} if dataclasses.is_dataclass(made) else made


def find_fields(name: str) -> list[Field]:
    """Return the field at the path ``name``, or else all fields whose name is ``name``.

    Args:
        name: as in an override; ``distill.teacher.0.mode``, ``distill.teacher[0].mode`` and ``distill.teacher.mode``
            are the same field, and ``teachers.clip`` is an entry of ``teachers``.

    Raises:
        SpecError: there is none; with the nearest.
    """
    fields, wanted = list(all_fields().values()), _parts(name)
    matches = [field for field in fields if _same(_parts(field.path), wanted) or _same(_parts(field.entry), wanted)]
    if not matches and len(wanted) == 1:
        matches = [field for field in fields if _parts(field.path)[-1] == wanted[0]]
    if not matches:
        raise SpecError("there is no such field", where=name, hint=_nearest(name))
    return matches


def _nearest(name: str) -> str:
    """Return a hint: the path nearest to ``name``, or to its last part."""
    paths = list(all_fields())
    near = difflib.get_close_matches(name, paths, 1, cutoff=0.8)
    last = difflib.get_close_matches(name.rpartition(".")[2], {_parts(path)[-1] for path in paths}, 1)
    near = near or difflib.get_close_matches(name, [path for path in paths if _parts(path)[-1] in last], 1, cutoff=0)
    return f"Did you mean {near[0]}?" if near else "radioplat default_specs prints all fields."


def _parts(path: str) -> list[str]:
    """Return the parts of a path without the indices of lists."""
    parts = path.replace("[", ".").replace("]", "").split(".")
    return [part for part in parts if part and not part.isdecimal()]


def _same(parts: list[str], wanted: list[str]) -> bool:
    """Return whether ``wanted`` names the same field; any text stands for the user's name of an entry."""
    return len(parts) == len(wanted) and all(a in (b, KEY) for a, b in zip(parts, wanted, strict=True))
