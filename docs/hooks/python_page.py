"""The reference of the Python API: mkdocstrings' instructions for what is public."""

from __future__ import annotations

import inspect

import radioplat
from radioplat import errors

ADDRESS = "reference/python.md"
# What code of a user's own gets or derives from: see the page on one's own code
EXTENSIONS = [
    "radioplat.models.features.Features",
    "radioplat.training.hooks.step_hook.StepHook",
    "radioplat.training.hooks.own_hook.HookContext",
]


def python_page() -> str:
    """Return the page."""
    modules = {name: _module_of(name) for name in radioplat.__all__}
    public = {name: f"{module}.{name}" for name, module in modules.items() if module != errors.__name__}
    sections = {
        "Functions": {f"radioplat.{name}": path for name, path in public.items()},
        "Code of your own": {path: path for path in EXTENSIONS},
        "Errors": {f"radioplat.errors.{name}": f"radioplat.errors.{name}" for name in _errors()},
    }
    lines = [f"# Python\n\n{inspect.getdoc(radioplat)}\n"]
    for title, entries in sections.items():
        lines += [f"## {title}\n", *(_instruction(path, heading) for heading, path in entries.items())]
    return "\n".join(lines)


def _module_of(name: str) -> str:
    """Return the module of a public name without importing it: torch takes seconds."""
    return radioplat._MODULES[name]


def _errors() -> list[str]:
    kinds = [kind for kind in vars(errors).values() if inspect.isclass(kind) and kind.__module__ == errors.__name__]
    return [kind.__name__ for kind in kinds]


def _instruction(path: str, heading: str) -> str:
    """One entry; the fields of a spec have pages of their own."""
    members = "" if heading != "radioplat.Spec" else "      members: false\n"
    return f"::: {path}\n    options:\n      heading: {heading}\n      toc_label: {heading}\n{members}"
