"""Comments of the schema's source: what each field and each word of an enumeration means."""

from __future__ import annotations

import ast
import functools
import inspect
import re
import tokenize
from collections.abc import Iterator
from enum import Enum
from io import StringIO
from types import ModuleType

ADDITION = "(+)"  # begins the comment of a field that TAO's spec does not have, or has with another meaning


def comment_of(owner: type, name: str) -> str:
    """Return the comment of field or member ``name`` of the class ``owner``, on its line or above it; else ""."""
    for kind in owner.__mro__:
        if kind.__module__.startswith("radioplat."):
            texts = _comments(_module(kind)).get(kind.__name__, {})
            if name in texts:
                return texts[name]
    return ""


def docstring_of(kind: type) -> str:
    """Return the first paragraph of a class's docstring on one line, without marks of reStructuredText."""
    paragraph = (inspect.getdoc(kind) or "").split("\n\n")[0]
    return plain(" ".join(paragraph.split()))


def plain(text: str) -> str:
    """Return text without the marks of code and of references."""
    return re.sub(r":\w+:`~?([^`]*)`", r"\1", text).replace("``", "").replace("`", "")


def words_of(kind: type[Enum]) -> dict[str, str]:
    """Return the comment of each word of an enumeration, else its part of the docstring."""
    doc = " ".join((inspect.getdoc(kind) or "").split())
    texts = {}
    for name, member in kind.__members__.items():
        described = re.search(rf"``{re.escape(name)}``: (.*?)(?=[;.]? (?:- )?``\w+``:|$)", doc)
        text = plain(described.group(1) if described else "").rstrip(" .;")
        texts[str(member.value)] = comment_of(kind, name) or text
    return texts


def _module(kind: type) -> ModuleType:
    module = inspect.getmodule(kind)
    assert module is not None
    return module


@functools.cache
def _comments(module: ModuleType) -> dict[str, dict[str, str]]:
    """Return the comments of all classes of a module, by class and name."""
    source = inspect.getsource(module)
    lines = dict(_comment_lines(source))
    texts: dict[str, dict[str, str]] = {}
    for each in ast.parse(source).body:
        if isinstance(each, ast.ClassDef):
            texts[each.name] = dict(_of_class(each, lines))
    return texts


def _comment_lines(source: str) -> Iterator[tuple[int, tuple[str, bool]]]:
    """Yield the number of each line with a comment: the comment, and whether the line has nothing else."""
    for token in tokenize.generate_tokens(StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], (token.string.lstrip("# "), token.line.lstrip().startswith("#"))


def _of_class(node: ast.ClassDef, lines: dict[int, tuple[str, bool]]) -> Iterator[tuple[str, str]]:
    for each in node.body:
        target = each.target if isinstance(each, ast.AnnAssign) else None
        if isinstance(each, ast.Assign):
            target = each.targets[0]  # type: ignore[assignment]  # of a member of an enumeration
        if isinstance(target, ast.Name):
            assert isinstance(each, (ast.AnnAssign, ast.Assign)) and each.end_lineno
            text = [lines[number][0] for number in range(each.lineno, each.end_lineno + 1) if number in lines]
            above = each.lineno - 1
            while not text and above in lines and lines[above][1]:
                above -= 1
            text = text or [lines[number][0] for number in range(above + 1, each.lineno)]
            yield target.id, plain(" ".join(text))
