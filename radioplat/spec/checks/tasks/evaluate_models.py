"""Checks of ``evaluate.models``; no file is opened."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath

from radioplat.common.imports import missing_extra
from radioplat.errors import Problem
from radioplat.spec.resolved.teacher import teacher_names
from radioplat.spec.schema.root import Spec

FILES = (".onnx", ".engine")  # files with a fixed precision


def model_problems(spec: Spec) -> Iterator[Problem]:
    """Yield fields that cannot be combined with ``evaluate.models``, and entries with equal or invalid names."""
    config, path = spec.evaluate, "evaluate.models"
    if not config.models:
        return
    for name in ("checkpoint", "resolutions", "num_tokens"):
        if getattr(config, name):
            hint = "Make it an entry of evaluate.models." if name == "checkpoint" else "Evaluate one checkpoint for it."
            yield Problem("it has no effect together with evaluate.models", f"evaluate.{name}", hint)
    names: list[str] = []
    teachers = teacher_names(spec.distill.teacher)
    for i, model in enumerate(config.models):
        where = f"{path}[{i}]"
        if not model.name.strip() or "/" in model.name:
            yield Problem(f"{model.name!r} is not a valid name", f"{where}.name", "Letters and digits, without slash.")
        elif model.name in names:
            yield Problem(f"{model.name!r} is given twice", f"{where}.name")
        elif model.name in teachers:
            yield Problem(f"a teacher has the name {model.name!r}", f"{where}.name", "Give the model another name.")
        names.append(model.name)
        kind = PurePath(model.path).suffix.lower()
        if kind in FILES:
            yield from missing_extra("onnx", f"an {kind} file", f"{where}.path")
        if kind in FILES and model.precision is not None:
            hint = "Remove the line; export.data_type makes a file of another precision."
            yield Problem(f"the precision of an {kind} file is fixed", f"{where}.precision", hint)
