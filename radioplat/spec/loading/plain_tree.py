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
