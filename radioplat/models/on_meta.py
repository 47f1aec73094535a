"""Modules built and run for their shapes alone: on the meta device, without what only changes values."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import init
from torch.overrides import TorchFunctionMode

# Constructors fill parameters with these, and layers call the last two. Each returns a tensor like its first argument;
# on the meta device each is a decomposition in Python that takes as long as a layer's matrix product.
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
