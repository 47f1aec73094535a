"""``radioplat migrate tao``: copy a spec of TAO's with the line ``compat: tao``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml

from radioplat.errors import SpecError
from radioplat.spec.loading.load import changed_fields, load_spec
from radioplat.spec.loading.tao_objective import TAO

LINE = f"compat: {TAO}\n"


@dataclass(frozen=True)
class Migrated:
    """The written file, and fields of the spec that have no effect here, with the reasons."""

    path: Path
    without_effect: dict[str, str]


def migrate_tao(source: Path, out: Path | None = None) -> Migrated:
    """Write a copy of ``source`` with the line ``compat: tao``; everything else in it stays, comments too.

    Args:
        out: the new file; default: beside ``source``, with ``_radioplat`` at the end of its name.

    Raises:
        SpecError: ``source`` has such a line or fields that cannot be honoured, or the new file exists.
    """
    spec = load_spec(source)
    if "compat" in changed_fields(spec):
        raise SpecError(f"{source} has this line already", where="compat", hint="Nothing is left to do.")
    path = out or source.with_name(f"{source.stem}_radioplat{source.suffix}")
    if path.exists():
        raise SpecError(f"{path} exists", where=str(path), hint="Name another file, or remove it.")
    lines = source.read_text(encoding="utf-8").splitlines(keepends=True)
    first = next((i for i, line in enumerate(lines) if line.strip() and not line.startswith(("#", "---", "%"))), 0)
    text = "".join([*lines[:first], LINE, *lines[first:]])
    try:
        tree = yaml.safe_load(text)
    except yaml.YAMLError:
        message, hint = "no line can be put before the first field of this file", "Add compat: tao to it yourself."
        raise SpecError(message, where=str(source), hint=hint) from None
    migrated = load_spec(tree)
    path.write_text(text, encoding="utf-8")
    return Migrated(path, dict(migrated.without_effect))
