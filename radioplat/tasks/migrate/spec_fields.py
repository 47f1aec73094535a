"""``radioplat migrate run SPEC``: copy a spec of ours without fields that have no effect any more, or are gone."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import yaml
from omegaconf import OmegaConf

from radioplat.errors import SpecError
from radioplat.spec.loading.load import load_spec
from radioplat.spec.resolved.retired import REMOVED, RETIRED
from radioplat.tracking.results import write_atomic


@dataclass(frozen=True)
class MigratedSpec:
    """The result for a spec.

    Attributes:
        path: the new file; None if there was nothing to do.
        fields: those left out, with the reasons.
        comments: False if the new file has lost the comments.
    """

    path: Path | None = None
    fields: dict[str, str] = field(default_factory=dict)
    comments: bool = True


def migrate_spec(source: Path) -> MigratedSpec:
    """Write a copy of ``source`` without fields that have no effect any more, if it has any.

    The copy is beside ``source``, with ``_radioplat`` at the end of its name.

    Raises:
        SpecError: ``source`` has fields that no version of radioplat had, or values out of range, or the copy exists.
    """
    text, tree = _read(source)
    fields = _fields(tree, RETIRED | REMOVED)
    if not fields:
        load_spec(source)
        return MigratedSpec()
    path = source.with_name(f"{source.stem}_radioplat{source.suffix}")
    if path.exists():
        raise SpecError(f"{path} exists", where=str(path), hint="Remove it, or give it to this command.")
    shorter, comments = _without(text, tree, fields)
    write_atomic(path, shorter)
    return MigratedSpec(path, fields, comments)


def gone_fields(source: Path) -> dict[str, str]:
    """Return the fields of a spec that a run wrote which this version does not have any more, with the reasons.

    Raises:
        SpecError: the rest of the spec cannot be read, for example for a field of a newer version.
    """
    tree = _read(source)[1]
    fields = _fields(tree, REMOVED)
    if fields:
        load_spec(without(tree, fields))
    else:
        load_spec(source)
    return fields


def drop_fields(source: Path, fields: Iterable[str]) -> None:
    """Write a spec without ``fields`` in its place, atomically.

    Raises:
        SpecError: it cannot be read without them.
    """
    text, tree = _read(source)
    write_atomic(source, _without(text, tree, fields)[0])


def _fields(tree: dict[str, Any], known: Mapping[str, str]) -> dict[str, str]:
    """Return those of ``known`` (field paths) that ``tree`` has."""
    return {path: reason for path, reason in known.items() if _has(tree, path.split("."))}


def _without(text: str, tree: dict[str, Any], fields: Iterable[str]) -> tuple[str, bool]:
    """Return the text of a spec without ``fields``, and True if it has its comments still."""
    kept = without(tree, fields)
    load_spec(kept)
    shorter = without_lines(text, fields)
    comments = _tree(shorter) == kept
    return (shorter if comments else yaml.safe_dump(kept, sort_keys=False, allow_unicode=True)), comments


def _read(source: Path) -> tuple[str, dict[str, Any]]:
    try:
        text = source.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        text = ""
    tree = _tree(text)
    if tree is None:
        load_spec(source)  # raises the error that names what is wrong with the file
    return text, tree or {}


def _tree(text: str) -> dict[str, Any] | None:
    """Return the tree of a YAML text, with its interpolations; None if it is none."""
    try:
        tree = OmegaConf.to_container(OmegaConf.create(text))
    except Exception:  # of many kinds: whatever is wrong, `load_spec` names it
        return None
    return cast("dict[str, Any]", tree) if isinstance(tree, dict) else None


def _has(tree: Any, parts: list[str]) -> bool:
    for part in parts:
        if not isinstance(tree, dict) or part not in tree:
            return False
        tree = tree[part]
    return True


def without(tree: dict[str, Any], fields: Iterable[str]) -> dict[str, Any]:
    """Return a copy of ``tree`` without ``fields`` (paths), and without sections that have no field left."""
    tree = copy.deepcopy(tree)
    for path in fields:
        *sections, name = path.split(".")
        chain = [tree]
        for section in sections:
            chain.append(chain[-1][section])
        del chain[-1][name]
        for section, parent, inner in reversed(list(zip(sections, chain, chain[1:], strict=False))):
            if not inner:
                del parent[section]
    return tree


def without_lines(text: str, fields: Iterable[str]) -> str:
    """Return a YAML text without the lines of ``fields`` (paths); other lines stay, comments too.

    A field in braces has no lines of its own; the result may then be another spec, which the caller checks.
    """
    root, lines = yaml.compose(text), text.splitlines(keepends=True)
    removed: set[int] = set()
    for path in fields:
        entries = list(_entries(root, path.split(".")))
        removed |= _rows(*entries[-1])
        for key, section in reversed(entries[:-1]):  # a section without fields would be no section
            if all(_rows(*entry) <= removed for entry in section.value):
                removed |= _rows(key, section)
    return "".join(line for number, line in enumerate(lines) if number not in removed)


def _entries(node: Any, parts: list[str]) -> Iterator[tuple[Any, Any]]:
    """Yield key and value of each section on the way to a field, and of the field."""
    for part in parts:
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        entry = next(((key, value) for key, value in pairs if key.value == part), None)
        if entry is None:
            return
        yield entry
        node = entry[1]


def _rows(key: Any, value: Any) -> set[int]:
    """Return the numbers of the lines of an entry."""
    return set(range(key.start_mark.line, max(_last(value), key.start_mark.line + 1)))


def _last(node: Any) -> int:
    """Return the number of the line after a node; the end of a block is not where its text ends."""
    if isinstance(node, yaml.ScalarNode):
        return node.end_mark.line + (0 if node.style in ("|", ">") else 1)
    if node.flow_style:
        return node.end_mark.line + 1
    inner = [part for item in node.value for part in (item if isinstance(item, tuple) else (item,))]
    return max((_last(part) for part in inner), default=node.start_mark.line + 1)
