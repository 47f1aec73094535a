"""Apply ``key=value`` overrides to a plain tree of dicts and lists, before it becomes a :class:`Spec`."""

from __future__ import annotations

import re
import typing
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from radioplat.errors import SpecError
from radioplat.spec.loading.fields import inner_kind, is_secret, strip_optional

_PART = re.compile(r"\.?([^.\[\]]+)|\[(\d+)\]")


def apply_override(tree: dict[str, Any], override: str, root: type) -> None:
    """Set one value in ``tree``, in place.

    Args:
        override: ``a.b[0].c=value`` or ``a.b.0.c=value``; the value is YAML; a mapping is merged into an existing
            one, anything else replaces the old value. An index one past the end of a list appends.
        root: the dataclass that ``tree`` will become; decides between list and mapping where ``tree`` has neither.

    Raises:
        SpecError: not ``key=value``, an impossible path, or a value that is not YAML.
    """
    key, equals, text = override.partition("=")
    key = key.lstrip("+").strip()
    if not equals or not key:
        where = re.split(r"[\s:]", override, maxsplit=1)[0]  # the rest may be a secret
        raise SpecError("an override must read key=value", where=where, hint="For example train.num_epochs=2.")
    parts = [(name or index) for name, index in _PART.findall(key)]
    if "".join(m.group() for m in _PART.finditer(key)) != key or key.startswith("."):
        raise SpecError("this is not a field path", where=key, hint="Write it as in distill.teacher[0].mode=spatial.")
    value = _value(key, text)
    node: Any = tree
    kind: Any = root
    for i, part in enumerate(parts):
        path, last = ".".join(parts[:i]), i == len(parts) - 1
        if path == "distill.teacher" and isinstance(node, dict) and part.isdecimal():
            # A single mapping means a list of one.
            tree["distill"]["teacher"] = node = [node]
        if isinstance(node, list):
            place: Any = _index(node, part, key)
        elif isinstance(node, dict):
            place = _key(part, kind)
        else:
            raise SpecError(f"{path} is a single value, it has no {part!r}", where=key)
        # A single mapping of `distill.teacher` may be addressed without an index.
        kind = inner_kind(kind if isinstance(node, list) or not _is_list(kind) else typing.get_args(kind)[0], part)
        if last:
            _put(node, place, value)
        else:
            if _get(node, place) is None:
                _put(node, place, [] if _is_list(kind) else {})
            node = _get(node, place)


def _value(key: str, text: str) -> Any:
    try:
        # omegaconf's YAML rules: 1e-3 is a number, a date is text.
        parsed = OmegaConf.from_dotlist([f"value={text}"])
        return typing.cast("dict[str, Any]", OmegaConf.to_container(parsed))["value"]
    except (yaml.YAMLError, OmegaConfBaseException, ValueError):  # ValueError: a number with thousands of digits
        shown = "" if is_secret(key) else f" {text!r}"
        raise SpecError(f"the value{shown} is not valid YAML", where=key) from None


def _index(node: list[Any], part: str, key: str) -> int:
    if not part.isdecimal():
        raise SpecError(f"a list has no {part!r}, only positions from 0", where=key)
    if int(part) > len(node):
        raise SpecError(f"the list has {len(node)} entries; the next position is {len(node)}, not {part}", where=key)
    return int(part)


def _key(part: str, kind: Any) -> Any:
    kind = strip_optional(kind)
    args = typing.get_args(kind)
    return int(part) if typing.get_origin(kind) is dict and args[0] is int and part.isdecimal() else part


def _is_list(kind: Any) -> bool:
    return typing.get_origin(strip_optional(kind)) is list


def _get(node: Any, place: Any) -> Any:
    if isinstance(node, list):
        return node[place] if place < len(node) else None
    return node.get(place)


def _put(node: Any, place: Any, value: Any) -> None:
    if isinstance(node, list) and place == len(node):
        node.append(value)
    else:
        present = _get(node, place)
        node[place] = _merge(present, value) if isinstance(present, dict) and isinstance(value, dict) else value


def _merge(present: dict[str, Any], value: dict[str, Any]) -> dict[str, Any]:
    merged = dict(present)
    for key, inner in value.items():
        _put(merged, key, inner)
    return merged
