"""The reference of the spec's fields, a page for each section, from the schema and its comments."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

import yaml

from radioplat.spec.loading.fields import ITEM, KEY
from radioplat.spec.reference.fields import REQUIRED, Field, all_fields

FOLDER = "reference/fields/"
_INTRODUCTION = """# Spec fields

Every field that a spec may have, with its default and the values it takes, by section. `[]` stands for the number of
an entry of a list, `NAME` for a name that you choose. On the command line `radioplat explain FIELD` prints the same; an
override is `path=value`, as `train.optim.lr=1e-3` or `distill.teacher[0].mode=combo`.

A field marked **(+)** is an addition to TAO's spec, or has another meaning than there.

| section | fields | meaning |
|---|---|---|
"""


def sections() -> list[Field]:
    """Return the top sections of the spec, in the schema's order."""
    return [field for path, field in all_fields().items() if "." not in path and field.section]


def anchor_of(path: str) -> str:
    """Return the anchor of a field's heading, for example ``distill.teacher.mode``."""
    return path.replace(ITEM, "")


def address_of(field: Field) -> str:
    """Return the address of a field in the site."""
    top = field.path.partition(".")[0].replace(ITEM, "")
    page = top if all_fields()[top].section else "index"
    return f"{FOLDER}{page}.md#{anchor_of(field.path)}"


def field_named(code: str) -> Field | None:
    """Return the field that a piece of code in a page names, with or without a value: ``teachers.clip.num_cpus=2``."""
    match = re.match(r"([a-z_]+(?:\[\w*\])?(?:\.(?:\w+|<\w+>)(?:\[\w*\])?)+)(?=$|[=:\s])", code)
    if not match:
        return None
    parts = [part for part in re.sub(r"\[\w*\]", "", match[1]).split(".") if not part.isdecimal()]
    if parts[0] == "teachers":
        parts[1] = KEY  # the user's name of a teacher
    return _by_name().get(".".join(parts))


@functools.cache
def _by_name() -> dict[str, Field]:
    return {path.replace(ITEM, ""): field for path, field in all_fields().items()}


def field_pages(mentions: Mapping[str, list[str]]) -> dict[str, str]:
    """Return the pages by address.

    Args:
        mentions: links to the places that mention a field, by its path.
    """
    alone = [field for path, field in all_fields().items() if "." not in path and not field.section]
    rows = [
        f"| [`{field.path}`]({field.path}.md) | {len(field.below)} | {_escaped(_meaning(field))} |\n"
        for field in sections()
    ]
    pages = {f"{FOLDER}index.md": _INTRODUCTION + "".join(rows) + "\n" + "\n".join(_entry(f, mentions) for f in alone)}
    for section in sections():
        inner = [section, *(field for field in section.below if field.section)]
        pages[f"{FOLDER}{section.path}.md"] = "\n".join(_section(each, section, mentions) for each in inner)
    return pages


def _section(section: Field, top: Field, mentions: Mapping[str, list[str]]) -> str:
    """A heading for the section, and an entry for each field that is directly in it."""
    mark = "#" if section is top else "##"
    text = _escaped(_meaning(section)) + _sign(section)
    lines = [f"{mark} `{section.path}` {{ #{anchor_of(section.path)} }}\n", f"{text}\n"]
    if not section.is_section:
        lines.append(f"{_escaped(section.accepts)}; default {_default(section)}\n")
    own = [field for field in section.below if field.path.rpartition(".")[0] == section.entry and not field.section]
    return "\n".join([*lines, *(_entry(field, mentions) for field in own)])


def _meaning(section: Field) -> str:
    """Return the text of a section without the words that only name it."""
    return re.sub(r"^Spec section [\w.]+?(?:[:;.] |[.;]?$)", "", section.text)


def _entry(field: Field, mentions: Mapping[str, list[str]]) -> str:
    lines = [f"### `{field.path}` {{ #{anchor_of(field.path)} }}\n"]
    if field.text:
        lines.append(f"{_escaped(field.text)}{_sign(field)}\n")
    lines.append(f"*Values:* {_escaped(field.accepts)}  \n*Default:* {_default(field)}\n")
    lines += [f"- `{word}`: {_escaped(text)}" for word, text in field.words.items() if text]
    if field.path in mentions:
        lines.append(f"\n*More:* {', '.join(mentions[field.path])}\n")
    return "\n".join(lines) + "\n"


def _sign(field: Field) -> str:
    return " **(+)**" if field.addition else ""


def _default(field: Field) -> str:
    if field.default == REQUIRED:
        return "none; a spec must have it"
    return f"`{yaml.safe_dump(field.default, default_flow_style=True, width=10_000).splitlines()[0]}`"


def _escaped(text: str) -> str:
    """Text in which no mark of Markdown or HTML counts."""
    return re.sub(r"([\\*_\[\]|`])", r"\\\1", text).replace("<", "&lt;").replace("{", "&#123;")
