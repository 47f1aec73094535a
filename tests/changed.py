"""Prints the unit tests that belong to what was changed: since the commit given, by default ``main``'s fork point.

A changed test belongs; so does every test that imports a changed module. End-to-end tests and tests that start Ray do
not: ``make test`` runs those.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
STARTS_RAY = re.compile(r"mark\.ray\b")


def changed_files(since: str) -> list[str]:
    """Files that differ from ``since``, committed or not, without those that are gone."""
    tracked = _git("diff", "--name-only", "--diff-filter=d", since)
    return sorted({*tracked, *_git("ls-files", "--others", "--exclude-standard")})


def tests_of(files: list[str]) -> list[str]:
    """Unit tests that are among ``files`` or import a module of theirs."""
    modules = [f.removesuffix(".py").replace("/", ".") for f in files if re.match(r"radioplat/.*\.py$", f)]
    found = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        name = path.relative_to(ROOT).as_posix()
        text = path.read_text(encoding="utf-8")
        if name.startswith("tests/end_to_end/") or STARTS_RAY.search(text):
            continue
        if name in files or any(_imports(text, module) for module in modules):
            found.append(name)
    return found


def _imports(text: str, module: str) -> bool:
    package, _, name = module.rpartition(".")
    plain = rf"\b{re.escape(module)}\b"
    return bool(re.search(plain, text) or re.search(rf"from {re.escape(package)} import .*\b{name}\b", text))


def _git(*arguments: str) -> list[str]:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()


def main() -> None:
    """Print their names, one a line."""
    since = sys.argv[1] if len(sys.argv) > 1 else (_git("merge-base", "HEAD", "main") or ["HEAD"])[0]
    print("\n".join(tests_of(changed_files(since))))


if __name__ == "__main__":
    main()
