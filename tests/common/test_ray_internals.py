"""Private names of Ray: in one module, there in the installed version, and tried with it."""

from __future__ import annotations

import ast
import inspect
import pkgutil
import re
from pathlib import Path

import pytest
import ray

from radioplat.common import ray_internals

ROOT = Path(__file__).parents[2]
HERE = "radioplat/common/ray_internals.py"
PRIVATE = re.compile(r"^ray\.(_|.*\._)|^ray\.core\.generated|^ray\.cloudpickle\._")


def _modules_of_ray(path: Path) -> set[str]:
    """Dotted names below ``ray`` that a file imports or reads, such as ``ray._private.state``."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Attribute):
            names.add(ast.unparse(node))
    return names


def test_the_installed_ray_was_tried_with_its_private_names():
    version = ".".join(ray.__version__.split(".")[:2])
    assert version in ray_internals.TESTED_VERSIONS, (
        f"Ray {ray.__version__} is installed, and {HERE} was tried with {', '.join(ray_internals.TESTED_VERSIONS)}: "
        "run tests/common, tests/cluster, tests/launch and the end-to-end tests that start Ray, then add it there"
    )


def test_no_other_file_uses_private_modules_of_ray():
    files = [p for p in (ROOT / "radioplat").rglob("*.py") if p != ROOT / HERE]
    found = {f"{p.relative_to(ROOT)}: {name}" for p in files for name in _modules_of_ray(p) if PRIVATE.match(name)}
    assert not found, f"import these from {HERE}"


@pytest.mark.parametrize("name", ray_internals.MODULES)
def test_a_private_name_exists_and_is_used(name):
    getattr(ray_internals, name)
    users = [p for p in (ROOT / "radioplat").rglob("*.py") if re.search(rf"\b{name}\b", p.read_text())]
    assert len(users) > 1, "nothing uses it: remove its line"


@pytest.mark.parametrize(("owner", "name"), [(o, n) for o, names in ray_internals.MEMBERS.items() for n in names])
def test_a_private_member_exists_and_is_used(owner, name):
    kind = pkgutil.resolve_name(owner)
    exists = hasattr(kind, name) or f"self.{name}" in inspect.getsource(kind)
    assert exists, f"Ray {ray.__version__} has no {owner}.{name}"
    users = [p for p in (ROOT / "radioplat").rglob("*.py") if name in p.read_text()]
    assert len(users) > 1, "nothing uses it: remove its line"


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        ray_internals.no_such_name  # noqa: B018
