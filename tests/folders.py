"""Write the table of folders in docs/contribute/architecture.md from the tree: ``python tests/folders.py``."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "contribute" / "architecture.md"
BEGIN, END = "<!-- folders: python tests/folders.py -->\n", "<!-- end of folders -->\n"


@dataclass(frozen=True)
class Folder:
    """One folder of the package.

    Attributes:
        path: below ``radioplat/``, "" for the package itself.
        files: number of files in it, without those in its sub-folders; ``__init__.py`` does not count.
        purpose: first line of its docstring.
        imports: top-level packages that it imports; only of top-level packages, with all below them.
    """

    path: str
    files: int
    purpose: str
    imports: tuple[str, ...]


@cache
def folders() -> list[Folder]:
    """Every folder of ``radioplat/``, by path."""
    package = ROOT / "radioplat"
    found = []
    for path in sorted({file.parent for file in package.rglob("*.py")}):
        files = [p for p in path.iterdir() if p.is_file() and p.suffix != ".pyc" and p.name != "__init__.py"]
        tree = ast.parse((path / "__init__.py").read_text(encoding="utf-8"))
        purpose = (ast.get_docstring(tree) or "").split("\n")[0].replace("``", "`")
        name = path.relative_to(package).as_posix().removeprefix(".")
        imports = _imports(path) - {name} if name and "/" not in name else set()
        found.append(Folder(name, len(files), purpose, tuple(sorted(imports))))
    return found


def _imports(folder: Path) -> set[str]:
    found = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module == "radioplat":
                names += [f"radioplat.{alias.name}" for alias in node.names]
            found |= {name.split(".")[1] for name in names if name.startswith("radioplat.")}
    return found - {"__version__"}


def table() -> str:
    """The table, in Markdown."""
    rows = ["| folder | what is in it | imports |", "|---|---|---|"]
    for folder in folders():
        name = f"`radioplat/{folder.path}/`" if folder.path else "`radioplat/`"
        imports = ", ".join(folder.imports)
        rows.append(f"| {name} | {folder.purpose} | {imports} |")
    return "\n".join(rows) + "\n"


def main() -> None:
    """Write the table into the page."""
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    PAGE.write_text(before + BEGIN + table() + END + after, encoding="utf-8")


if __name__ == "__main__":
    main()
