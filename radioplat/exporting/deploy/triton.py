"""Model repository of a bundle for NVIDIA's Triton Inference Server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_CONFIG = """name: "{name}"
platform: "tensorrt_plan"
default_model_filename: "model.plan"
max_batch_size: {most}
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
    batches: tuple[int, int, int],
) -> str:
    """Return the text of ``config.pbtxt``.

    Triton sends batches of any size from 1 on to a model with a ``max_batch_size``. Where the engine takes fewer sizes
    it is 0: then Triton makes no batches, and the batch is a dimension like others, that clients give.

    Args:
        inputs, outputs: shapes by name; a dynamic dimension is given by its name.
        size: height and width in pixels, for dynamic sides of the input.
        batches: smallest, optimal and largest of the engine; without effect for a graph with a fixed batch size.
    """
    (shape, *_) = inputs.values()
    smallest, _, largest = batches
    dynamic = not isinstance(shape[0], int)
    batching = dynamic and smallest == 1 < largest
    batch = -1 if smallest < largest else largest

    def dims(shape: Sequence[int | str], sides: Sequence[int] = ()) -> str:
        """Return the dimensions; where Triton makes batches, it adds theirs itself."""
        first = [] if batching else [batch if dynamic else shape[0]]
        known = [*first, *shape[1 : len(shape) - len(sides)], *sides]
        return ", ".join(str(side) if isinstance(side, int) else "-1" for side in known)

    text = _CONFIG.format(
        name=name,
        most=largest if batching else 0,
        inputs=",\n".join(_TENSOR.format(name=n, dims=dims(shape, size)) for n, shape in inputs.items()),
        outputs=",\n".join(_TENSOR.format(name=n, dims=dims(shape)) for n, shape in outputs.items()),
    )
    return text + (_BATCHING if batching else "")
