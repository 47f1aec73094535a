"""Copies into the wheel what ``radioplat init`` writes; everything else about the package is in pyproject.toml."""

from __future__ import annotations

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

# clusters/images builds images from a checkout.
IGNORED = shutil.ignore_patterns("__pycache__", "*.pyc", "images")


class BuildWithStarterFiles(build_py):
    """Builds the package with the folders of the repository's root below ``radioplat/starter``."""

    def run(self) -> None:
        """Build the package; an editable one uses the folders of its checkout."""
        super().run()
        if self.editable_mode:
            return
        starter = Path(self.build_lib, "radioplat", "starter")
        shutil.rmtree(starter, ignore_errors=True)
        for name in ("specs", "jobs", "tune_spaces", "clusters"):
            shutil.copytree(name, starter / name, ignore=IGNORED)


setup(cmdclass={"build_py": BuildWithStarterFiles})
