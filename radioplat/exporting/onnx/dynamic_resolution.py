"""Dynamic image sizes of an ONNX file: dimensions for the tracer, and their names in the file."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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


@contextlib.contextmanager
def constant_same_padding(step: int, size: tuple[int, int]) -> Iterator[None]:
    """Let layers of timm with TensorFlow's padding pad by a constant where it is the same for all image sizes.

    timm computes this padding from the side of the map. While sides are symbols, each layer's formula contains those of
    all layers before it, and an EfficientNet takes the tracer minutes.

    Args:
        step: sides of images are multiples of it.
        size: height and width of the traced images.
    """
    module: Any = importlib.import_module("timm.layers.padding")
    original = module.get_same_padding

    def constant_or_computed(side: Any, kernel_size: int, stride: int, dilation: int) -> Any:
        """Return the padding of one axis; it is the same for all sides that are multiples of the stride."""
        if isinstance(side, torch.SymInt):
            pixels = {whole // side.node.hint for whole in size if whole % side.node.hint == 0}  # of one position
            if any(step % (each * stride) == 0 for each in pixels):
                return max((kernel_size - 1) * dilation + 1 - stride, 0)
        return original(side, kernel_size, stride, dilation)

    module.get_same_padding = constant_or_computed
    try:
        yield
    finally:
        module.get_same_padding = original


def name_sides(file: Path) -> None:
    """Name the dynamic sides of the images ``height`` and ``width``, and those of maps ``rows`` and ``columns``.

    Raises:
        EngineError: a side is not dynamic, because the student's forward fixed it.
    """
    import onnx

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
