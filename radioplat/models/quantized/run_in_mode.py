"""Run the forward of a module in a mode that replaces calls of torch's functions, with the module's code as it is."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from torch import nn
from torch.overrides import TorchFunctionMode


def run_in_mode(module: nn.Module, mode: Callable[[nn.Module], TorchFunctionMode]) -> None:
    """Change the class of ``module``, in place, to a subclass whose forward runs in ``mode(module)``.

    Its tensors and hooks stay the same objects, and it remains an instance of its class.
    """
    module.__class__ = _subclass(type(module), mode)  # type: ignore[arg-type]


@cache
def _subclass(kind: type[nn.Module], mode: Callable[[nn.Module], TorchFunctionMode]) -> type[nn.Module]:
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Run the forward of the class in the mode."""
        with mode(self):
            return kind.forward(self, *args, **kwargs)

    return type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})
