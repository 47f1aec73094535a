"""The upsampler of teachers, FeatSharp; imported only where a spec names one."""

from __future__ import annotations

import importlib
from typing import Any

from radioplat.spec.resolved.teacher import ResolvedTeacher

# The module has KIND and VERSION of checkpoints, and functions read_for_teacher, parameter_count and load_upsampler.
_FEATSHARP = "radioplat.teachers.upsamplers.featsharp.checkpoint"


def upsampler_module() -> Any:
    """Import the module that reads the checkpoints of upsamplers."""
    return importlib.import_module(_FEATSHARP)


def upsampler_field(teacher: ResolvedTeacher) -> str:
    """Return the path of the spec field that names the upsampler's checkpoint."""
    return f"{teacher.where}.upsampler_checkpoint"
