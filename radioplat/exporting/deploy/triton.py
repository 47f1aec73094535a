"""Model repository of a bundle for NVIDIA's Triton Inference Server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_CONFIG = """name: "{name}"
platform: "tensorrt_plan"
default_model_filename: "model.plan"
max_batch_size: {largest}
input [
{inputs}
]
output [
{outputs}
]
instance_group [ {{ kind: KIND_GPU }} ]
"""
_TENSOR = '  {{ name: "{name}" data_type: TYPE_FP32 dims: [ {dims} ] }}'
_BATCHING = "dynamic_batching { }\n"


def config(
    name: str,
    inputs: Mapping[str, Sequence[int | str]],
    outputs: Mapping[str, Sequence[int | str]],
    size: tuple[int, int],
    largest: int,
) -> str:
    """Return the text of ``config.pbtxt``.

    Args:
        inputs, outputs: shapes by name; a dynamic dimension is given by its name.
        size: height and width in pixels, for dynamic sides of the input.
        largest: batch size of the engine; for a graph with a fixed batch size it has no effect.
    """
    (shape, *_) = inputs.values()
    dynamic = not isinstance(shape[0], int)

    def dims(shape: Sequence[int | str], sides: Sequence[int] = ()) -> str:
        """Return the dimensions; Triton adds that of a dynamic batch itself."""
        known = [*shape[: len(shape) - len(sides)], *sides]
        return ", ".join(str(side) if isinstance(side, int) else "-1" for side in (known[1:] if dynamic else known))

    text = _CONFIG.format(
        name=name,
        largest=largest if dynamic else 0,
        inputs=",\n".join(_TENSOR.format(name=n, dims=dims(shape, size)) for n, shape in inputs.items()),
        outputs=",\n".join(_TENSOR.format(name=n, dims=dims(shape)) for n, shape in outputs.items()),
    )
    return text + (_BATCHING if dynamic and largest > 1 else "")
