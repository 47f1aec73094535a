"""radioplat: distil one vision student from several frozen foundation models, on Ray.

Tasks are functions of this module, with the arguments of their commands: a spec (a YAML file, a mapping, or what
``load_spec`` returns) and overrides ``["train.num_epochs=2"]``. It returns a dataclass, or raises a ``RadioplatError``
that names the field and the remedy. ``load_student`` opens a student; ``embed`` and ``predict`` use a model on images.

    >>> import radioplat
    >>> result = radioplat.distill("spec.yaml", ["train.num_epochs=2"])
    >>> student = radioplat.load_student(result.student)
    >>> features = student(images)  # uint8 [B, 3, H, W]
    >>> radioplat.embed(result.student, "photographs/", out="features.parquet")

Everything is imported on first use, so ``import radioplat`` needs neither torch, Ray nor DeepSpeed.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"
# Module of each public name; radioplat/__init__.pyi has the same names for editors and type checkers.
_MODULES = {
    "Problem": "radioplat.errors",
    "RadioplatError": "radioplat.errors",
    "Spec": "radioplat.spec.schema.root",
    "Stopped": "radioplat.errors",
    "Student": "radioplat.models.student.student",
    "build_engine": "radioplat.tasks.export.engine",
    "compress": "radioplat.tasks.compress.compress",
    "distill": "radioplat.tasks.distill.distill",
    "embed": "radioplat.evaluation.inference.api",
    "evaluate": "radioplat.tasks.evaluate.evaluate",
    "export": "radioplat.tasks.export.export",
    "fork": "radioplat.tasks.fork.fork",
    "inference": "radioplat.tasks.inference.inference",
    "lineage": "radioplat.tasks.lineage.lineage",
    "load_spec": "radioplat.spec.loading.load",
    "load_student": "radioplat.models.student.checkpoint",
    "low_rank": "radioplat.tasks.low_rank.low_rank",
    "pipeline": "radioplat.tasks.pipeline.pipeline",
    "plan": "radioplat.tasks.plan.plan",
    "predict": "radioplat.evaluation.inference.api",
    "prune": "radioplat.tasks.prune.prune",
    "quantize": "radioplat.tasks.quantize.quantize",
    "replay": "radioplat.tasks.replay.replay",
    "sensitivity": "radioplat.tasks.quantize.sensitivity",
    "train": "radioplat.tasks.distill.distill",
    "train_upsampler": "radioplat.tasks.train_upsampler.train_upsampler",
    "tune": "radioplat.tasks.tune.tune",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    import difflib

    near = difflib.get_close_matches(name, _MODULES, 1)
    hint = f". Did you mean: {near[0]!r}?" if near else ""
    raise AttributeError(f"module 'radioplat' has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
