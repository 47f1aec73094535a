"""Checks of Python and library versions against radioplat's requirements and tested versions."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from radioplat.cluster.doctor.finding import Finding, fail, ok, warn
from radioplat.common.listing import first_few

_NAMED = 5


def versions(constraints: Path | None) -> Iterator[Finding]:
    """Check the installed versions.

    Args:
        constraints: file of the tested versions; None if there is none.
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
        yield fail("Python", f"{here}; {wanted} is needed", "Create the environment with that Python.")
    yield requirements(metadata.requires("radioplat") or [])
    if constraints is not None:
        yield pins(constraints.read_text())


def requirements(lines: list[str]) -> Finding:
    """Check every requirement outside extras."""
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
        return fail("libraries", first_few(wrong, _NAMED), "pip install -c constraints.txt . in this environment.")
    return ok("libraries", "all that radioplat needs")


def pins(text: str) -> Finding:
    """Compare the installed versions with a constraints file; packages that are not installed are skipped."""
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
        hint = "pip install -c constraints.txt . installs the tested ones."
        return warn("tested versions", f"{len(other)} differ: {first_few(other, _NAMED)}", hint)
    return ok("tested versions", "as in constraints.txt")


def installed(name: str) -> str | None:
    """Return the installed version of a distribution, or None."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def constraints_file() -> Path | None:
    """Return ``constraints.txt`` of this code's checkout, or of the working directory as in the images, or None."""
    for folder in (Path(__file__).parents[2], Path.cwd()):
        path = folder / "constraints.txt"
        if path.is_file() and re.search(r"^ray==", path.read_text(), re.MULTILINE):
            return path
    return None
