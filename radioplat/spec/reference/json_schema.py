"""The spec as a JSON schema (draft 2020-12), by which editors complete and check a YAML file."""

from __future__ import annotations

import dataclasses
import typing
from enum import Enum
from typing import Any

from radioplat.spec.import_paths import IMPORT_PATH, NameOrImportPath
from radioplat.spec.loading.fields import strip_optional
from radioplat.spec.ranges import Range
from radioplat.spec.reference.fields import REQUIRED, Field, all_fields
from radioplat.spec.schema.root import Spec

_ALSO_MAPPINGS = ("distill.teacher", "evaluate.models")  # lists that the loader makes of a mapping, too
_TYPES = {int: "integer", float: "number", bool: "boolean", str: "string"}
_NOTHING = {"type": "null"}
# An interpolation, or a number or truth value that radioplat decides.
_LATER = {"type": "string", "pattern": r"^auto$|\$\{|^\?\?\?$"}


def json_schema() -> dict[str, Any]:
    """Return the schema of a spec file. TAO's other names of fields, which the loader accepts, are not in it."""
    definitions: dict[str, Any] = {}
    top = _section(Spec, "", definitions)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A spec of radioplat",
        **top,
        "$defs": dict(sorted(definitions.items())),
    }


def _section(section: type, path: str, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return a reference to the definition of a section, which is made where it is missing."""
    if section.__name__ not in definitions:
        definitions[section.__name__] = {}  # holds the place in the order
        names = [field.name for field in dataclasses.fields(section)]
        fields = {name: all_fields()[f"{path}.{name}" if path else name] for name in names}
        properties = {name: _property(field, definitions) for name, field in fields.items()}
        definitions[section.__name__] = {"type": "object", "additionalProperties": False, "properties": properties}
    return {"$ref": f"#/$defs/{section.__name__}"}


def _property(field: Field, definitions: dict[str, Any]) -> dict[str, Any]:
    kind, choices = strip_optional(field.kind), []
    if field.is_section:
        choices = [_section(kind, field.entry, definitions), _NOTHING]
    else:
        choices = [_of_kind(kind, field, definitions), _LATER]
        choices += [_NOTHING] if kind is not field.kind else []
        choices += [{"type": "object"}] if field.path in _ALSO_MAPPINGS else []
    text = {"description": field.text} if field.text else {}
    default = {} if field.is_section or field.default == REQUIRED else {"default": field.default}
    return {**text, **default, "anyOf": choices}


def _of_kind(kind: Any, field: Field, definitions: dict[str, Any]) -> dict[str, Any]:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return {}
    if origin in (list, dict):
        inner = args[-1]
        is_section = dataclasses.is_dataclass(inner)
        entry = _section(inner, field.entry, definitions) if is_section else _of_kind(inner, field, definitions)
        return (
            {"type": "array", "items": entry} if origin is list else {"type": "object", "additionalProperties": entry}
        )
    if isinstance(kind, type) and issubclass(kind, Enum):
        words = {"enum": list(dict.fromkeys([*kind.__members__, *(str(member.value) for member in kind)]))}
        own = {"type": "string", "pattern": f"^{IMPORT_PATH.pattern}$"}
        return {"anyOf": [words, own]} if issubclass(kind, NameOrImportPath) else words
    return {"type": _TYPES[kind], **_bounds(field.limits if kind in (int, float) else None)}


def _bounds(limits: Range | None) -> dict[str, Any]:
    """Return the bounds of a number; none where values outside of them are valid, too."""
    if limits is None or limits.also:
        return {}
    bounds = {
        "minimum": limits.at_least,
        "exclusiveMinimum": limits.above,
        "maximum": limits.at_most,
        "exclusiveMaximum": limits.below,
    }
    return {name: bound for name, bound in bounds.items() if bound is not None}
