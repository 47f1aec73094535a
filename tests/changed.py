"""Prints the unit tests that belong to what was changed: since the commit given, by default ``main``'s fork point.

A changed test belongs; so does every test that imports a changed module, or, where no test does, a module that imports
it. End-to-end tests and tests that start Ray do not: ``make test`` runs those.
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
    """Unit tests that are among ``files`` or belong to a module of theirs."""
    tests = {p: text for p, text in _texts("tests", "test_*.py").items() if not _is_slow(p, text)}
    sources = _texts("radioplat", "*.py")
    found = {name for name in files if name in tests}
    for file in files:
        if file in sources:
            found |= _tests_of_module(file, tests, sources)
    return sorted(found)


def _tests_of_module(file: str, tests: dict[str, str], sources: dict[str, str]) -> set[str]:
    """Tests that import a module, or else the nearest modules above it; those of its own package if there are any."""
    level, seen = {file}, {file}
    while level:
        found = {name for name, text in tests.items() if any(_imports(text, module) for module in level)}
        if found:
            return {name for name in found if name.split("/")[1] == file.split("/")[1]} or found
        level = {f for f, text in sources.items() if f not in seen and any(_imports(text, module) for module in level)}
        seen |= level
    return set()


def _texts(folder: str, pattern: str) -> dict[str, str]:
    """Files by their names relative to the repository."""
    paths = (ROOT / folder).rglob(pattern)
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def _is_slow(name: str, text: str) -> bool:
    return name.startswith("tests/end_to_end/") or bool(STARTS_RAY.search(text))


def _imports(text: str, file: str) -> bool:
    module = file.removesuffix(".py").replace("/", ".")
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
