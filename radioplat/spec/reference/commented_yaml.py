"""A spec as YAML in which each field has its meaning above it."""

from __future__ import annotations

import textwrap
from typing import Any

from radioplat.spec.loading.load import dump, spec_tree
from radioplat.spec.reference.fields import Field, all_fields
from radioplat.spec.schema.root import Spec

_WIDTH = 110


def commented_yaml(spec: Spec) -> str:
    """Return the whole spec as YAML with comments; ``load_spec`` reads it back unchanged."""
    return "\n".join(_lines(spec_tree(spec), "", 0)) + "\n"


def _lines(tree: dict[str, Any], path: str, depth: int) -> list[str]:
    fields, indent = all_fields(), "  " * depth
    lines: list[str] = []
    for name, value in tree.items():
        at = f"{path}.{name}" if path else name
        field = fields[at]
        if not depth and lines:
            lines.append("")
        lines += [f"{indent}# {line}" for line in textwrap.wrap(_comment(field), _WIDTH - len(indent))]
        if field.is_section:
            lines += [f"{indent}{name}:", *_lines(value, at, depth + 1)]
        else:
            style = None if isinstance(value, (dict, list)) else False  # None: a list of figures stays on one line
            text = dump({name: value}, default_flow_style=style, width=10_000)
            lines += [indent + line if line else "" for line in text.splitlines()]
    return lines


def _comment(field: Field) -> str:
    text = field.text
    if field.words:
        text += f" ({field.accepts})" if text else field.accepts
    if field.section and not field.is_section:
        text += f". Fields of an entry: radioplat explain {field.path}"
    return text
