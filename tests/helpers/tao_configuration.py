"""Read fields and defaults of TAO's configuration from its source, without importing it."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = "nvidia_tao_pytorch"
VALUES = ("value", "arrList", "hashMap")  # arguments of STR_FIELD and the like that hold the default
Found = tuple[Path, ast.ClassDef]


def leaves(module: Path, name: str) -> dict[str, Any]:
    """Return the default of every field below the dataclass ``name`` by its path; ``???`` for a required one."""
    found = _find(module, name)
    assert found is not None, f"{module} has no class {name}"
    return dict(_leaves(found, {}, ""))


def _leaves(section: Found, given: dict[str, Any], at: str) -> Iterator[tuple[str, Any]]:
    for name, (module, field) in _fields(section).items():
        path = f"{at}.{name}" if at else name
        if inner := _section(module, field.annotation):
            yield from _leaves(inner, _arguments(field.value), path)
        else:
            yield path, given.get(name, _default(field.value))


def _fields(section: Found) -> dict[str, tuple[Path, ast.AnnAssign]]:
    """Return the fields of a class, the inherited first, each with the module that defines it."""
    module, node = section
    fields: dict[str, tuple[Path, ast.AnnAssign]] = {}
    for base in node.bases:
        if isinstance(base, ast.Name) and (parent := _find(module, base.id)):
            fields |= _fields(parent)
    own = (line for line in node.body if isinstance(line, ast.AnnAssign))
    return fields | {line.target.id: (module, line) for line in own if isinstance(line.target, ast.Name)}


def _section(module: Path, annotation: ast.expr) -> Found | None:
    """Return the dataclass of an annotation ``X`` or ``Optional[X]``; None for other types."""
    if isinstance(annotation, ast.Subscript) and isinstance(annotation.value, ast.Name):
        annotation = annotation.slice if annotation.value.id == "Optional" else annotation
    return _find(module, annotation.id) if isinstance(annotation, ast.Name) else None


def _find(module: Path, name: str) -> Found | None:
    for node in _parsed(module).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return module, node
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(ROOT):
            if any((alias.asname or alias.name) == name for alias in node.names):
                parts = (node.module or "").split(".")
                base = module.parents[len(module.parts) - 1 - module.parts.index(ROOT)].joinpath(*parts)
                file = base.with_suffix(".py")
                return _find(file if file.exists() else base / "__init__.py", name)
    return None


@functools.cache
def _parsed(module: Path) -> ast.Module:
    return ast.parse(module.read_text())


def _arguments(value: ast.expr | None) -> dict[str, Any]:
    """Return the arguments of the instance in ``DATACLASS_FIELD(X(a=1))``."""
    inner = value.args[0] if isinstance(value, ast.Call) and value.args else None
    return {k.arg or "": _literal(k.value) for k in inner.keywords} if isinstance(inner, ast.Call) else {}


def _default(value: ast.expr | None) -> Any:
    if not isinstance(value, ast.Call):
        return _literal(value)
    named = [k.value for k in value.keywords if k.arg in VALUES]
    return _literal((named or value.args or [None])[0])


def _literal(value: ast.expr | None) -> Any:
    """Return a constant; ``???`` for ``MISSING``."""
    try:
        return None if value is None else ast.literal_eval(value)
    except ValueError:
        return "???"
