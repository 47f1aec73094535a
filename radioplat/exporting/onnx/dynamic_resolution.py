"""Dynamic image sizes of an ONNX file: dimensions for the tracer, and their names in the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import torch

from radioplat.errors import EngineError

FIELD = "export.dynamic_resolution"
HEIGHT, WIDTH, ROWS, COLUMNS = "height", "width", "rows", "columns"


def step_of(student: Any) -> int:
    """Return the number of pixels that the sides of an image must be a multiple of.

    Raises:
        EngineError: the backbone is built for one size.
    """
    backbone = getattr(student, "backbone", student)
    if not getattr(backbone, "any_size", True):
        name = getattr(backbone, "name", type(backbone).__name__)
        raise EngineError(
            f"{name} is built for images of one size",
            where=FIELD,
            hint="Set it to false, and export a file for each size.",
        )
    return student.stride


def traced_size(height: int, width: int, step: int) -> tuple[int, int]:
    """Return a size near ``height x width`` to trace at: multiples of ``step``, at least two, and different.

    torch.export assumes that a length of 1 is constant, and that equal lengths are one dimension.
    """
    rows = max(2, height // step)
    columns = max(2, width // step)
    return rows * step, (columns + 2 if columns == rows else columns) * step


def tried_sizes(height: int, width: int, step: int) -> list[tuple[int, int]]:
    """Return the sizes at which the file is compared with torch: the requested one, and a larger one, not square."""
    return [(height, width), ((height // step + 1) * step, (width // step + 3) * step)]


def sides(step: int) -> dict[int, torch.export.Dim]:
    """Return the dynamic dimensions of ``[B, 3, H, W]`` other than the batch."""
    return {2: step * torch.export.Dim(ROWS, min=1), 3: step * torch.export.Dim(COLUMNS, min=1)}


def name_sides(file: Path) -> None:
    """Name the dynamic sides of the images ``height`` and ``width``, and those of maps ``rows`` and ``columns``.

    Raises:
        EngineError: a side is not dynamic, because the student's forward fixed it.
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
                    hint="Set it to false, and export a file for each size.",
                )
            dimensions[axis].dim_param = name
    # Shapes of intermediate values have the tracer's names; they can be inferred.
    del model.graph.value_info[:]
    onnx.save(model, str(file))
