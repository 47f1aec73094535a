"""An ONNX file that takes images of any size: what the tracer is told, and what the dimensions are called after it."""

from __future__ import annotations

import typing
from pathlib import Path

import onnx
import torch

from radioplat.errors import EngineError

FIELD = "export.dynamic_resolution"
HEIGHT, WIDTH, ROWS, COLUMNS = "height", "width", "rows", "columns"


class _Sized(typing.Protocol):
    @property
    def stride(self) -> int: ...


def step_of(student: _Sized) -> int:
    """Pixels that the sides of an image must be a multiple of.

    Raises:
        EngineError: the backbone is built for one size.
    """
    backbone = getattr(student, "backbone", student)
    if not getattr(backbone, "any_size", True):
        name = getattr(backbone, "name", type(backbone).__name__)
        raise EngineError(
            f"{name} is built for images of one size", where=FIELD, hint="Leave it false, and export a file for a size."
        )
    return student.stride


def traced_size(height: int, width: int, step: int) -> tuple[int, int]:
    """A size near ``height x width`` to trace at: whole steps, at least two of them, and unlike sides.

    torch.export takes a length of 1 for a constant, and two equal lengths for one.
    """
    rows = max(2, height // step)
    columns = max(2, width // step)
    return rows * step, (columns + 2 if columns == rows else columns) * step


def tried_sizes(height: int, width: int, step: int) -> list[tuple[int, int]]:
    """The sizes at which the file is compared with torch: the one asked for, and one that is larger and not square."""
    return [(height, width), ((height // step + 1) * step, (width // step + 3) * step)]


def sides(step: int) -> dict[int, torch.export.Dim]:
    """Dynamic dimensions of ``[B, 3, H, W]`` but the batch."""
    return {2: step * torch.export.Dim(ROWS, min=1), 3: step * torch.export.Dim(COLUMNS, min=1)}


def name_sides(file: Path) -> None:
    """Call the open sides of the images ``height`` and ``width``, and those of maps ``rows`` and ``columns``.

    Raises:
        EngineError: a side is not open: the student's forward fixed it.
    """
    model = onnx.load(str(file), load_external_data=False)
    (images,) = model.graph.input
    named = [(images, (2, 3), (HEIGHT, WIDTH))]
    named += [(v, (1, 2), (ROWS, COLUMNS)) for v in model.graph.output if len(v.type.tensor_type.shape.dim) == 4]
    for value, axes, names in named:
        dimensions = value.type.tensor_type.shape.dim
        for axis, name in zip(axes, names, strict=True):
            if dimensions[axis].HasField("dim_value"):
                raise EngineError(
                    f"the student's forward fixes the {name} of `{value.name}` while it is traced",
                    where=FIELD,
                    hint="Leave it false, and export a file for each size.",
                )
            dimensions[axis].dim_param = name
    # What lies between speaks of the tracer's names; it follows from the rest.
    del model.graph.value_info[:]
    onnx.save(model, str(file))
