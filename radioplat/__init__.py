"""radioplat: distil one vision student from several frozen foundation models, on Ray.

``radioplat.distill(spec)`` runs a distillation, ``radioplat.load_student(path)`` opens what it wrote, and
``radioplat.embed(path, images)`` and ``radioplat.predict(path, images)`` use it on images.
Everything is imported on first use, so ``import radioplat`` needs neither torch, Ray nor DeepSpeed.
"""

from __future__ import annotations

import importlib

__version__ = "0.1.0"
__all__ = ["distill", "train", "evaluate", "embed", "predict", "load_spec", "load_student"]

_FUNCTIONS = {
    "distill": ("radioplat.tasks.distill.distill", "distill"),
    "train": ("radioplat.tasks.distill.distill", "train"),
    "evaluate": ("radioplat.tasks.evaluate.evaluate", "evaluate"),
    "embed": ("radioplat.evaluation.inference.api", "embed"),
    "predict": ("radioplat.evaluation.inference.api", "predict"),
    "load_spec": ("radioplat.spec.loading.load", "load_spec"),
    "load_student": ("radioplat.models.student.checkpoint", "load_student"),
}


def __getattr__(name: str):
    if name not in _FUNCTIONS:
        raise AttributeError(f"module 'radioplat' has no attribute {name!r}")
    module, function = _FUNCTIONS[name]
    return getattr(importlib.import_module(module), function)
