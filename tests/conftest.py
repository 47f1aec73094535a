"""How the tests are dealt to processes (`make test` runs the unit tests in two)."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A file stays in one process; those that start a Ray cluster share one, for a machine holds one at a time."""
    with_ray = {item.path for item in items if "cluster" in getattr(item, "fixturenames", ())}
    for item in items:
        item.add_marker(pytest.mark.xdist_group("ray" if item.path in with_ray else str(item.path)))
