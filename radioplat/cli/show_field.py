"""Show fields of the spec for ``radioplat explain``."""

from __future__ import annotations

from typing import Any

import yaml

from radioplat.common import terminal
from radioplat.spec.reference.fields import REQUIRED, Field, find_fields


def explain(path: str) -> None:
    """Print fields with type, default, words and meaning; of a section, also the table of its fields.

    Raises:
        SpecError: there is no such field.
    """
    for field in find_fields(path):
        _show(field)
        rows = [[_below(each, field), _shown(each.default), each.text] for each in field.below if not each.is_section]
        if rows:
            terminal.show_table(field.path, ["field", "default", "meaning"], rows)


def _show(field: Field) -> None:
    default = "required" if field.default == REQUIRED else f"default {_shown(field.default)}"
    terminal.say(f"{field.path}: {field.text}" if field.text else field.path)
    if not field.section:
        terminal.say(f"    {field.accepts}; {default}")
    described = {word: text for word, text in field.words.items() if text}
    for word, text in described.items():
        terminal.say(f"    {word}: {text}")
    if field.addition:
        terminal.say("    an addition to TAO's spec, or to what TAO's field means")


def _below(field: Field, section: Field) -> str:
    return field.path.removeprefix(section.path).lstrip(".")


def _shown(value: Any) -> str:
    if value == REQUIRED:
        return "required"
    return yaml.safe_dump(value, default_flow_style=True, width=10_000).splitlines()[0]
