"""Build modules without the values that nobody reads: for their shapes alone, or for weights that are loaded next."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import init
from torch.overrides import TorchFunctionMode

# Constructors fill parameters with these; layers call the last three. The result has the shape of the first argument;
# on the meta device each would be a decomposition in Python, as slow as a layer's matrix product.
_ONLY_VALUES = frozenset(
    [Tensor.uniform_, Tensor.normal_, Tensor.zero_, Tensor.fill_, Tensor.erfinv_, Tensor.mul_, Tensor.add_]
    + [Tensor.clamp_, init.uniform_, init.normal_, init.constant_, init.kaiming_uniform_]
    + [F.batch_norm, F.layer_norm, F.hardtanh]
)

_RANDOM = frozenset(
    [Tensor.uniform_, Tensor.normal_, Tensor.erfinv_, init.uniform_, init.normal_, init.trunc_normal_]
    + [init.kaiming_uniform_, init.kaiming_normal_, init.xavier_uniform_, init.xavier_normal_]
)


class _Skip(TorchFunctionMode):
    """Return the first argument of some ``functions`` as it is."""

    def __init__(self, functions: frozenset[Callable], only_meta: bool) -> None:
        super().__init__()
        self._functions, self._only_meta = functions, only_meta

    def __torch_function__(self, function: Callable, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in self._functions:
            first = args[0] if args else (kwargs or {}).get("tensor")  # torch.nn.init passes it by name
            if first is not None and (first.is_meta or not self._only_meta):
                return first
        return function(*args, **(kwargs or {}))


@contextlib.contextmanager
def on_meta() -> Iterator[None]:
    """Create tensors on the meta device, and skip functions that change no shape."""
    with torch.device("meta"), _Skip(_ONLY_VALUES, only_meta=True):
        yield


@contextlib.contextmanager
def without_random_values() -> Iterator[None]:
    """Draw no random initial values, which take seconds for a large model; its parameters must be loaded afterwards."""
    with _Skip(_RANDOM, only_meta=False):
        yield
