"""Compare a plain tree of YAML values with the spec's dataclasses, and look up field types."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import types
import typing
from collections.abc import Iterator
from enum import Enum
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from radioplat.errors import Problem
from radioplat.spec.schema.distill import TeacherConfig

# Fields by which the `distill.teacher` blocks of TAO's other tasks are recognised.
_OTHER_TASKS = {
    "num_queries": "DINO or RT-DETR (object detection)",
    "dec_layers": "DINO (object detection)",
    "enc_layers": "DINO (object detection)",
    "num_feature_levels": "DINO (object detection)",
    "train_backbone": "DINO (object detection)",
    "hidden_dim": "RT-DETR (object detection)",
    "num_decoder_layers": "RT-DETR (object detection)",
    "decoder": "SegFormer (segmentation)",
}
_REQUIRED = "???"
ITEM, KEY = "[]", "NAME"  # in a path: an entry of a list, and the user's name of an entry of a mapping


def faults(value: Any, kind: Any, path: str, root: type) -> Iterator[Problem]:
    """Yield a problem for each unknown, missing or mistyped field of ``value``.

    Interpolations (``${...}``) are skipped; they are not resolved yet.

    Args:
        value: plain dicts, lists and scalars.
        kind: the dataclass, or field annotation, that ``value`` should have.
        path: field path of ``value``, empty at the top.
        root: the top dataclass, to suggest the right section for misplaced fields.
    """
    required = strip_optional(kind)
    if _is_interpolation(value) or (value is None and typing.get_origin(required) is list and required is not kind):
        return
    kind = required
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        if isinstance(value, dict):
            yield from _section(value, typing.cast(type, kind), path, root)
        else:
            yield Problem("a section is expected here" + _not(value, path), path, _drop(value))
    elif origin is list:
        if not isinstance(value, list):
            yield Problem("a list is expected here" + _not(value, path), path, _drop(value))
        for i, inner in enumerate(value if isinstance(value, list) else []):
            if dataclasses.is_dataclass(args[0]):
                yield from faults(inner, args[0], f"{path}[{i}]", root)
    elif origin is dict:
        if not isinstance(value, dict):
            yield Problem("a mapping is expected here" + _not(value, path), path, _drop(value))
        for key, inner in value.items() if isinstance(value, dict) else ():
            if dataclasses.is_dataclass(args[1]):
                yield from faults(inner, args[1], f"{path}.{key}", root)


def strip_optional(kind: Any) -> Any:
    """Return ``X`` for ``X | None``, and any other annotation unchanged."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        inner = [a for a in typing.get_args(kind) if a is not type(None)]
        return inner[0] if len(inner) == 1 else kind
    return kind


def inner_kind(kind: Any, part: str) -> Any:
    """Return the annotation of field, key or index ``part`` of ``kind``; ``Any`` if unknown."""
    kind = strip_optional(kind)
    if dataclasses.is_dataclass(kind):
        return _hints(typing.cast(type, kind)).get(part, Any)
    args = typing.get_args(kind)
    return args[-1] if typing.get_origin(kind) in (list, dict) and args else Any


def accept_case(value: Any, kind: Any) -> Any:
    """Return ``value`` with words of an enumeration in its spelling: TAO takes ``balanced`` and ``BALANCED``."""
    kind = strip_optional(kind)
    if isinstance(value, dict):
        for key in value:
            value[key] = accept_case(value[key], inner_kind(kind, key))
    elif isinstance(value, list):
        value[:] = [accept_case(inner, inner_kind(kind, "0")) for inner in value]
    elif isinstance(value, str) and isinstance(kind, type) and issubclass(kind, Enum):
        names = [name for name in kind.__members__ if name.lower() == value.lower()]
        return names[0] if len(names) == 1 and value not in kind.__members__ else value
    return value


def is_secret(path: str) -> bool:
    """Return True if the value of the field at ``path`` must not be shown."""
    return path.rpartition(".")[2].lower().endswith(("key", "secret", "token", "password"))


class Entry(NamedTuple):
    """One field in a walk over the schema.

    Attributes:
        path: for example ``distill.teacher[].mode`` or ``teachers.NAME.num_cpus``.
        section: the dataclass that has it.
        field: its definition there.
        kind: its annotation.
    """

    path: str
    section: type
    field: dataclasses.Field[Any]
    kind: Any


def walk(section: type, path: str = "") -> Iterator[Entry]:
    """Yield every field at and below the dataclass ``section``, in the schema's order; a section before its fields."""
    for field in dataclasses.fields(section):
        at, kind = f"{path}.{field.name}" if path else field.name, _hints(section)[field.name]
        yield Entry(at, section, field, kind)
        inner = innermost(kind)
        if dataclasses.is_dataclass(inner):
            yield from walk(typing.cast(type, inner), at + entry_mark(kind))


def innermost(kind: Any) -> Any:
    """Return the annotation of the innermost entries of a list or mapping; any other without ``None``."""
    kind = strip_optional(kind)
    args = typing.get_args(kind)
    return innermost(args[-1]) if typing.get_origin(kind) in (list, dict) and args else kind


def entry_mark(kind: Any) -> str:
    """Return the end of the path of an entry: ``[]`` of a list, ``.NAME`` of a mapping, nothing of another field."""
    return {list: ITEM, dict: f".{KEY}"}.get(typing.get_origin(strip_optional(kind)), "")


def _section(value: dict[str, Any], kind: type, path: str, root: type) -> Iterator[Problem]:
    if kind is TeacherConfig and (task := _other_task(value)):
        yield Problem(
            f"this block belongs to another task: {task}",
            path,
            "A `radio` teacher has model.backbone.type and pretrained_teacher_model_path.",
        )
        return
    hints = _hints(kind)
    for key, inner in value.items():
        at = f"{path}.{key}" if path else str(key)
        if key not in hints:
            yield Problem("unknown field", at, _nearest(str(key), hints, path, root))
        elif inner == _REQUIRED:
            yield _missing(at)
        else:
            here = list(faults(inner, hints[key], at, root))
            yield from here or _mistyped(inner, kind, key, at)
    for field in dataclasses.fields(kind):
        if field.default == _REQUIRED and field.name not in value:
            yield _missing(f"{path}.{field.name}")


def _mistyped(value: Any, kind: type, key: str, path: str) -> Iterator[Problem]:
    """Yield a problem if omegaconf cannot convert this leaf value."""
    hint = _hints(kind)[key]
    if _holds_sections(hint) or _is_interpolation(value) or type(value) is strip_optional(hint):
        return
    try:
        OmegaConf.update(_blank(kind), key, value, merge=False)  # replaces what an earlier call left there
    except OmegaConfBaseException as error:
        full = getattr(error, "full_key", None) or key
        at = path + full.removeprefix(key) if full.startswith(key) else path
        if is_secret(path):
            yield Problem("the value has the wrong type", at)
        else:
            yield Problem(first_line(error), at, _nearest_word(value, innermost(hint)))
    except OverflowError:
        yield Problem("the number is too large", path)


def _nearest_word(value: Any, kind: Any) -> str:
    """Return a hint: the words of an enumeration nearest to wrong ones in ``value``; empty if there is none."""
    if not (isinstance(kind, type) and issubclass(kind, Enum)):
        return ""
    values = value if isinstance(value, list) else [value]
    words = [str(each) for each in values if isinstance(each, str) and each not in kind.__members__]
    near = [match for word in words for match in difflib.get_close_matches(word, kind.__members__, 1, 0.5)]
    return f"Did you mean {', '.join(near)}?" if near else ""


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


@functools.cache
def _blank(kind: type) -> DictConfig:
    return OmegaConf.structured(kind)


def _holds_sections(kind: Any) -> bool:
    kind = strip_optional(kind)
    return dataclasses.is_dataclass(kind) or any(dataclasses.is_dataclass(a) for a in typing.get_args(kind))


def _other_task(block: dict[str, Any]) -> str | None:
    known = _hints(TeacherConfig)
    tasks = [_OTHER_TASKS[key] for key in block if key in _OTHER_TASKS and key not in known]
    # The most specific field: one that a single task has.
    if tasks:
        return min(tasks, key=len)
    return "DINO or RT-DETR (object detection)" if isinstance(block.get("backbone"), str) else None


def _missing(path: str) -> Problem:
    return Problem("a value is required here", path, f"Give it in the file or as {path}=...")


def _not(value: Any, path: str) -> str:
    return "" if is_secret(path) else f", not {value!r}"


def _drop(value: Any) -> str:
    return "Remove the line to take the defaults." if value is None else ""


def _is_interpolation(value: Any) -> bool:
    return isinstance(value, str) and "${" in value


def _nearest(key: str, hints: dict[str, Any], path: str, root: type) -> str:
    close = difflib.get_close_matches(key, hints, n=1, cutoff=0.5)
    if close and difflib.SequenceMatcher(None, key, close[0]).ratio() >= 0.6:
        return f"Did you mean {path + '.' if path else ''}{close[0]}?"
    elsewhere = [entry.path.replace(ITEM, "[0]") for entry in walk(root) if entry.field.name == key]
    if elsewhere:
        return f"Did you mean {max(elsewhere, key=lambda p: _shared(p, path))}?"
    if close:
        return f"Did you mean {path + '.' if path else ''}{close[0]}?"
    return "Valid here: " + ", ".join(sorted(hints)) + "."


def _shared(a: str, b: str) -> tuple[int, int]:
    """Sort key: the longest common prefix first, then the shortest path."""
    same = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return same, -len(a)


def first_line(error: BaseException) -> str:
    """Return the first line of omegaconf's message."""
    return str(error).splitlines()[0].rstrip(".")
