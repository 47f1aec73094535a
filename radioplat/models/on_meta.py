"""Build and run modules on the meta device only for their shapes, skipping functions that only change values."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import init
from torch.overrides import TorchFunctionMode

# Constructors fill parameters with these; layers call the last two. The result has the shape of the first argument;
# on the meta device each would be a decomposition in Python, as slow as a layer's matrix product.
_ONLY_VALUES = frozenset(
    [Tensor.uniform_, Tensor.normal_, Tensor.zero_, Tensor.fill_, Tensor.erfinv_, Tensor.mul_, Tensor.add_]
    + [Tensor.clamp_, init.uniform_, init.normal_, init.constant_, init.kaiming_uniform_, F.batch_norm, F.hardtanh]
)


class _SkipValues(TorchFunctionMode):
    def __torch_function__(self, function: Callable, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in _ONLY_VALUES and args and args[0].is_meta:
            return args[0]
        return function(*args, **(kwargs or {}))


@contextlib.contextmanager
def on_meta() -> Iterator[None]:
    """Create tensors on the meta device, and skip functions that change no shape."""
    with torch.device("meta"), _SkipValues():
        yield
