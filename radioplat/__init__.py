"""radioplat: distil one vision student from several frozen foundation models, on Ray.

``radioplat.distill(spec)`` runs a distillation, ``radioplat.load_student(path)`` opens what it wrote.
Everything is imported on first use, so ``import radioplat`` needs neither torch, Ray nor DeepSpeed.
"""

from __future__ import annotations

import importlib

__version__ = "0.1.0"
__all__ = ["distill", "train", "evaluate", "load_spec", "load_student"]

_FUNCTIONS = {
    "train": ("radioplat.distill.run", "train"),
    "load_spec": ("radioplat.spec.load", "load_spec"),
    "load_student": ("radioplat.models.checkpoint", "load_student"),
}
_CALLABLE_ROOMS = ("distill", "evaluate")


def __getattr__(name: str):
    if name in _CALLABLE_ROOMS:
        return importlib.import_module(f"radioplat.{name}")
    if name in _FUNCTIONS:
        module, attribute = _FUNCTIONS[name]
        return getattr(importlib.import_module(module), attribute)
    raise AttributeError(f"module 'radioplat' has no attribute {name!r}")
