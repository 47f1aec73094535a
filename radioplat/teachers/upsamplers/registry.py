"""Upsamplers by their name in a teacher's ``adaptor`` field; imported only where a spec names one."""

from __future__ import annotations

import importlib
from typing import Any

from radioplat.spec.resolved.teacher import ResolvedTeacher
from radioplat.spec.schema.upsampler import FEATSHARP

# Each module has KIND and VERSION of its checkpoints, and the functions read_for_teacher, parameter_count and
# load_upsampler.
_MODULES = {FEATSHARP: "radioplat.teachers.upsamplers.featsharp.checkpoint"}


def upsampler_module(name: str = FEATSHARP) -> Any:
    """Import the module that reads the checkpoints of the upsampler called ``name``."""
    return importlib.import_module(_MODULES[name])


def upsampler_field(teacher: ResolvedTeacher) -> str:
    """Return the path of the spec field that names the upsampler's checkpoint."""
    return f"{teacher.where}.upsampler_checkpoint"
