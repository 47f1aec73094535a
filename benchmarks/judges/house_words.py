"""Count words of a private dialect in the package and the docs. Imports nothing of radioplat.

``python -m benchmarks.judges.house_words [CHECKOUT]`` reads every Python file in ``radioplat/`` (names that it defines,
docstrings, comments, messages) and every page of ``docs/`` with README and CONTRIBUTING (without code blocks), prints
each place of a listed word, and ends with one JSON object: ``names``, ``prose`` (counts by word) and ``total``.

The list is the one of issue 20 and of ``shared/layout.md``, Appendix A; a word of the field (a float's ``mantissa``, a
``shard``) is never on it.
"""

from __future__ import annotations

import ast
import io
import json
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

# A part of a defined name: `seat` in `seat_of_rank`, `Keeper` in `PoolKeeper`.
PARTS = "grain seat shelf keeper pulse bill donor blame lookout likeness diary told doomed whereabouts tidings".split()
# A whole defined name that tells nothing of the thing.
NAMES = "said found asked seen meant whose gone told what saying beside".split()
# Words in docstrings, comments, messages and pages.
PROSE = re.compile(
    r"(?<![-\w`])(grains?|seats?|shel(?:f|ves)|keepers?|pulses?|bills?|donors?|lookouts?|likeness|diar(?:y|ies)|"
    r"told|doom(?:ed|s)?|blames?d?|and the like|strangers?|rooms?|blows?|blown)(?![-\w`])",
    re.IGNORECASE,
)
RIDDLE = re.compile(r"^(What|Who|Whose|How) ")


def main() -> int:
    """Print every place and the counts."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    names: Counter[str] = Counter()
    prose: Counter[str] = Counter()
    for kind, word, place in places(root):
        (names if kind == "name" else prose)[word.lower()] += 1
        print(f"{place}: {kind} {word}")
    total = names.total() + prose.total()
    print(json.dumps({"names": dict(names.most_common()), "prose": dict(prose.most_common()), "total": total}))
    return 0 if total == 0 else 1


def places(root: Path) -> Iterator[tuple[str, str, str]]:
    """``("name" or "prose" or "docstring", word, place)`` for each listed word of a checkout."""
    for path in sorted((root / "radioplat").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        where = path.relative_to(root).as_posix()
        tree = ast.parse(text)
        for name, line in _defined(tree):
            parts = [p.lower() for p in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]
            for word in {*PARTS} & {*parts}:
                yield "name", word, f"{where}:{line} {name}"
            if name.strip("_") in NAMES:
                yield "name", name.strip("_"), f"{where}:{line}"
        for string, line in _prose(text):
            for match in PROSE.finditer(string):
                yield "prose", match[0], f"{where}:{line}"
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                first = RIDDLE.match(ast.get_docstring(node) or "")
                if first:
                    yield "docstring", first[1] + " ...", f"{where}:{getattr(node, 'lineno', 1)}"
    for path in [*sorted((root / "docs").rglob("*.md")), root / "README.md", root / "CONTRIBUTING.md"]:
        text = re.sub(r"```.*?```", lambda m: "\n" * m[0].count("\n"), path.read_text(encoding="utf-8"), flags=re.S)
        for number, line in enumerate(text.splitlines(), 1):
            for match in PROSE.finditer(line):
                yield "prose", match[0], f"{path.relative_to(root)}:{number}"


def _defined(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Names that a module defines: functions, classes, arguments, variables, fields."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name, node.lineno
            case ast.arg():
                yield node.arg, node.lineno
            case ast.Name(ctx=ast.Store()):
                yield node.id, node.lineno
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr, node.lineno


def _prose(text: str) -> Iterator[tuple[str, int]]:
    """Comments and strings of a module, with their lines."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING) and " " in token.string:
            yield token.string, token.start[0]


if __name__ == "__main__":
    sys.exit(main())
