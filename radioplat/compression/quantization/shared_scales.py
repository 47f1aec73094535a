"""Find quantizers that need one scale: they round the same tensor, or tensors that an engine stores as one.

TensorRT moves a QuantizeLinear from behind a concatenation or max pooling to before it, because these select values and
compute none. So the branches of a concatenation that is rounded have its scale, and so has each other reader of them:
with two scales a branch would be written twice, or the concatenation would run in floats. Average pooling computes new
values; what it returns has a scale of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from radioplat.compression.quantization.calibrate import WEIGHT
from radioplat.models.quantized.fake_quantize import NumberFormat
from radioplat.models.quantized.quantizer import Quantizer, in_float, quantizers

# Names of torch's functions that return values of their arguments, and no new ones.
_SELECTS = frozenset({"cat", "concat", "concatenate", "max_pool2d", "reshape", "flatten", "contiguous", "clone"})
# A tensor at one time: its address, its size, and how often it was changed in place.
Place = tuple[int, int, int]


def shared_scales(model: nn.Module, run: Callable[[], object], settled: tuple[str, ...] = ()) -> dict[str, str]:
    """Return the quantizers that use the scale of another of the same format, which is called first, by name.

    Args:
        run: runs images through the model.
        settled: prefixes of quantizers that keep their scales.
    """
    reads: dict[str, tuple[NumberFormat, list[Place]]] = {}
    record = _Record()
    with contextlib.ExitStack() as hooks:

        def note(quantizer: Quantizer, name: str, x: torch.Tensor) -> None:
            """Note which tensor a quantizer reads."""
            reads.setdefault(name, (quantizer.format, []))[1].append(record.place(x))

        for name, quantizer in quantizers(model).items():
            if not name.endswith(WEIGHT) and not name.startswith(settled):
                hook = quantizer.register_forward_pre_hook(lambda q, args, name=name: note(q, name, args[0]))
                hooks.callback(hook.remove)
        with in_float(model), record:  # a rounded tensor would be a copy
            run()
    groups = _Groups()
    for place in (place for _, places in reads.values() for place in places):
        for other in record.selected_from(place):
            groups.join(place, other)
    leaders: dict[tuple, str] = {}
    shared: dict[str, str] = {}
    for name, (format, places) in reads.items():
        # Backbone, heads and the rest of a detector are described apart.
        leader = leaders.setdefault((name.partition(".")[0], format, *map(groups.first_of, places)), name)
        if leader != name:
            shared[name] = leader
    return shared


class _Record(TorchFunctionMode):
    """Records which tensors have values of which others alone."""

    def __init__(self) -> None:
        super().__init__()
        self._sources: dict[Place, list[Place]] = {}
        self._alive: list[torch.Tensor] = []  # so that no address is used again

    def place(self, x: torch.Tensor) -> Place:
        """Return where ``x`` is now."""
        self._alive.append(x)
        return x.data_ptr(), x.numel(), x._version

    def selected_from(self, place: Place) -> set[Place]:
        """Return the tensors whose values the one at ``place`` has, over several steps, and itself."""
        reached, waiting = {place}, [place]
        while waiting:
            new = set(self._sources.get(waiting.pop(), ())) - reached
            reached |= new
            waiting += new
        return reached

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:  # noqa: ANN401
        """Call ``func`` and note from which tensors its result is selected."""
        result = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") in _SELECTS and isinstance(result, torch.Tensor):
            given = [each if isinstance(each, list | tuple) else [each] for each in (*args, *(kwargs or {}).values())]
            parts = [self.place(part) for some in given for part in some if isinstance(part, torch.Tensor)]
            if (place := self.place(result)) not in parts:  # else it is a view
                self._sources[place] = parts
        return result


class _Groups:
    """Disjoint sets of tensors."""

    def __init__(self) -> None:
        self._parents: dict[Place, Place] = {}

    def first_of(self, place: Place) -> Place:
        """Return the tensor that stands for the set of ``place``."""
        while (parent := self._parents.get(place, place)) != place:
            place = parent
        return place

    def join(self, a: Place, b: Place) -> None:
        """Unite the sets of two tensors."""
        self._parents[self.first_of(b)] = self.first_of(a)
