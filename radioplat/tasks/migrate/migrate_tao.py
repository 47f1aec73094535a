"""``radioplat migrate tao``: a spec of TAO's with the line ``compat: tao``, without fields that are unknown here."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import yaml

from radioplat.errors import Problem, SpecError
from radioplat.spec.loading.load import changed_fields, dump, load_spec
from radioplat.spec.loading.tao_objective import TAO
from radioplat.tasks.migrate.written_spec import WrittenSpec

LINE = f"compat: {TAO}\n"
_UNKNOWN = "unknown field"


def migrate_tao(source: Path) -> WrittenSpec:
    """Return a copy of ``source`` with the line ``compat: tao``; everything else in it stays, comments too.

    Fields that radioplat does not know are left out, and then the comments are lost.

    Raises:
        SpecError: ``source`` has such a line, or fields that cannot be honoured.
    """
    text, notes = _text(source), dict[str, str]()
    try:
        spec = load_spec(source)
    except SpecError as error:
        tree = _tree(text)
        if tree is None or any(problem.message != _UNKNOWN for problem in error.problems):
            raise
        for problem in error.problems:
            path = problem.where.removeprefix(f"{source}: ")
            notes[path] = _left_out(problem, _removed(tree, path))
        text = dump(tree)
        spec = load_spec(copy.deepcopy(tree))
    if "compat" in changed_fields(spec):
        raise SpecError(f"{source} has this line already", where="compat", hint="Nothing is left to do.")
    lines = text.splitlines(keepends=True)
    first = next((i for i, line in enumerate(lines) if line.strip() and not line.startswith(("#", "---", "%"))), 0)
    text = "".join([*lines[:first], LINE, *lines[first:]])
    if (tree := _tree(text)) is None:
        message, hint = "no line can be put before the first field of this file", "Add compat: tao to it yourself."
        raise SpecError(message, where=str(source), hint=hint)
    return WrittenSpec(text, notes | load_spec(tree).without_effect)


def _text(source: Path) -> str:
    try:
        return source.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""  # `load_spec` says what is wrong


def _tree(text: str) -> dict[str, Any] | None:
    try:
        tree = yaml.safe_load(text)
    except yaml.YAMLError:
        return None
    return tree if isinstance(tree, dict) else None


def _removed(tree: Any, path: str) -> Any:  # noqa: ANN401
    """Remove the field at ``path``, for example ``distill.teacher[0].colour``, and return its value."""
    parts = [int(index) if index else name for name, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", path)]
    for part in parts[:-1]:
        if isinstance(tree, dict) and isinstance(part, int):
            continue  # a single teacher is a mapping in the file, and a list of one in the path
        tree = tree[part]
    return tree.pop(parts[-1])


def _left_out(problem: Problem, value: Any) -> str:  # noqa: ANN401
    return f"left out: radioplat has no such field (it was {value!r}). {problem.hint}".rstrip()
