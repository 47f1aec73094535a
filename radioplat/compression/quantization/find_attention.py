"""Find the modules that call torch's fused attention."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from radioplat.models.quantized.attention import is_attention


@torch.no_grad()
def find_attention(model: nn.Module, run: Callable[[], object]) -> list[str]:
    """Return the names of the modules whose own forward calls ``scaled_dot_product_attention``, in their order.

    Args:
        run: runs images through the model.
    """
    stack: list[str] = [""]
    callers: dict[str, None] = {}

    class Record(TorchFunctionMode):
        """Notes the innermost module at each call."""

        def __torch_function__(
            self, func: Callable, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
        ) -> Any:  # noqa: ANN401
            """Call ``func``, and note the module if it is attention."""
            if is_attention(func):
                callers[stack[-1]] = None
            return func(*args, **(kwargs or {}))

    def leave(*_: Any) -> None:  # noqa: ANN401
        """Note that a module ends; what a hook returns would replace its output."""
        stack.pop()

    with contextlib.ExitStack() as hooks:
        for name, module in model.named_modules():
            hooks.callback(module.register_forward_pre_hook(lambda *_, name=name: stack.append(name)).remove)
            hooks.callback(module.register_forward_hook(leave).remove)
        with Record():
            run()
    return [name for name in callers if name]
