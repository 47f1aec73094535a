"""Terminal output of ``teachers list``."""

from __future__ import annotations

from collections.abc import Sequence

from radioplat.common import terminal
from radioplat.tasks.teachers.known import KnownTeacher


def show(teachers: Sequence[KnownTeacher]) -> None:
    """Print one row a model."""
    rows = [
        [
            *(one.type, one.licence or "not stated", f"{one.parameters / 1e6:.1f}", str(one.size)),
            *(_short(one.mean), _short(one.std)),
        ]
        for one in teachers
    ]
    terminal.show_table(
        "teachers whose weights timm names",
        ["model.backbone.type", "licence", "M parameters", "px", "norm_mean", "norm_std"],
        rows,
        note="M parameters: millions, of the backbone. px: side of the images that it was trained with. licence: of "
        "the weights, as their page on the hub states it; read it there. Others, and how each is read, are in "
        "docs/define/teachers.md. Any of timm's: radioplat teachers list PATTERN.",
    )
    first = teachers[0]
    terminal.say(f"fetch its weights: radioplat weights fetch {first.address}")
    terminal.say(f"name them in a spec: pretrained_teacher_model_path: {first.address}")


def _short(values: Sequence[float]) -> str:
    return "/".join(f"{value:.4g}" for value in values)
