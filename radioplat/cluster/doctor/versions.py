"""Python and the libraries: those that radioplat needs, and those that it is tested with."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from radioplat.cluster.doctor.finding import Finding, fail, ok, warn

_NAMED = 5


def versions(constraints: Path | None) -> Iterator[Finding]:
    """Compare what is installed.

    Args:
        constraints: the versions that a checkout is tested with; None where there is no file.
    """
    try:
        about = metadata.metadata("radioplat")
    except metadata.PackageNotFoundError:
        yield warn("radioplat", "run from a folder, not installed", "pip install -c constraints.txt .")
        return
    wanted, here = about["Requires-Python"] or "", platform.python_version()
    if SpecifierSet(wanted).contains(here, prereleases=True):
        yield ok("Python", here)
    else:
        yield fail("Python", f"{here}; {wanted} is needed", "Make the environment with such a Python.")
    yield requirements(metadata.requires("radioplat") or [])
    if constraints is not None:
        yield pins(constraints.read_text())


def requirements(lines: list[str]) -> Finding:
    """Whether every requirement without an extra is met."""
    wrong = []
    for requirement in map(Requirement, lines):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        version = installed(requirement.name)
        if version is None:
            wrong.append(f"{requirement.name} is missing")
        elif not requirement.specifier.contains(version, prereleases=True):
            wrong.append(f"{requirement.name} {version} is not {requirement.specifier}")
    if wrong:
        return fail("libraries", _listed(wrong), "pip install -c constraints.txt . in this environment.")
    return ok("libraries", "all that radioplat needs")


def pins(text: str) -> Finding:
    """Whether the versions are those of a constraints file; what it names and is not installed does not count."""
    other = []
    for line in text.splitlines():
        name, equal, pinned = line.partition("==")
        if not equal or line.startswith("#"):
            continue
        version = installed(name.strip())
        # A local part names the build (2.14.1+cpu), not another version.
        if version is not None and version.partition("+")[0] != pinned.strip():
            other.append(f"{name} {version} instead of {pinned.strip()}")
    if other:
        hint = "pip install -c constraints.txt . takes the tested ones."
        return warn("tested versions", f"{len(other)} differ: {_listed(other)}", hint)
    return ok("tested versions", "as in constraints.txt")


def installed(name: str) -> str | None:
    """The version of a distribution, if it is there."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def constraints_file() -> Path | None:
    """``constraints.txt`` of the checkout that this code is from, or of the folder at hand, as in the images."""
    for folder in (Path(__file__).parents[2], Path.cwd()):
        path = folder / "constraints.txt"
        if path.is_file() and re.search(r"^ray==", path.read_text(), re.MULTILINE):
            return path
    return None


def _listed(items: list[str]) -> str:
    more = len(items) - _NAMED
    return ", ".join(items[:_NAMED]) + (f" and {more} more" if more > 0 else "")
