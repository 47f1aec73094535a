"""Bytes that travel between a worker and a teacher in actors, for one image of the student."""

from __future__ import annotations

from math import prod

from radioplat.spec.resolved.teacher import ResolvedTeacher
from radioplat.teachers.base.info import TeacherInfo

VALUE = 2  # bytes of a bf16 value


def pixel_bytes(teacher: ResolvedTeacher) -> float:
    """Return the bytes of the teacher's view, uint8; of a mosaic an image's part of it, of drawn sizes the mean."""
    draw = teacher.sizes or ((teacher.view_size, 1.0),)
    return sum(3 * size**2 * chance for size, chance in draw) / teacher.mosaic**2


def feature_bytes(teacher: ResolvedTeacher, info: TeacherInfo, grid: tuple[int, int]) -> float:
    """Return the bytes of the outputs that the losses need, bf16.

    Args:
        grid: rows and columns of the map that is sent, of the largest size.
    """
    widths = {"summary": info.summary_dim, "logits": info.logits_dim, "spatial": info.spatial_dim * prod(grid)}
    values = sum(widths[kind] if kind in widths else prod(info.named[kind]) for kind in teacher.wanted)
    return VALUE * values / teacher.mosaic**2
