"""Where the files under test lie."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def clusters() -> Path:
    """The folder ``clusters``."""
    return Path(__file__).parents[2] / "clusters"
