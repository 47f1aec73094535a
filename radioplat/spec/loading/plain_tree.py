"""Fields of a plain tree of dicts, by their paths (``a.b.c``, without indices)."""

from __future__ import annotations

from typing import Any


def get(tree: Any, path: str) -> Any:
    """Return the value at ``path``; None if there is none."""
    for name in path.split("."):
        tree = tree.get(name) if isinstance(tree, dict) else None
    return tree


def take(tree: dict[str, Any], path: str) -> Any:
    """Remove the field at ``path``, and return its value; None if there is none."""
    section, _, name = path.rpartition(".")
    inner = get(tree, section) if section else tree
    return inner.pop(name, None) if isinstance(inner, dict) else None


def put(tree: dict[str, Any], path: str, value: Any) -> None:
    """Set a field that is absent or None; nothing if one of its sections is no mapping."""
    *sections, name = path.split(".")
    for section in sections:
        tree = tree.setdefault(section, {})
        if not isinstance(tree, dict):
            return
    if tree.get(name) is None:
        tree[name] = value


def has(tree: Any, path: str) -> bool:
    """Return True if there is a field at ``path``, whatever its value."""
    section, _, name = path.rpartition(".")
    inner = get(tree, section) if section else tree
    return isinstance(inner, dict) and name in inner


def note(tree: dict[str, Any], path: str, reason: str) -> None:
    """Write into ``without_effect`` why the field at ``path`` has no effect; nothing if that is no mapping."""
    noted = tree.setdefault("without_effect", {})
    if isinstance(noted, dict):
        noted[path] = reason


def move(tree: dict[str, Any], old: str, new: str) -> None:
    """Move a field; one whose new place has another value stays, and is refused as unknown."""
    if (value := get(tree, old)) in (None, ""):
        take(tree, old)
    elif get(tree, new) in (None, "", value):
        take(tree, new)
        put(tree, new, take(tree, old))
