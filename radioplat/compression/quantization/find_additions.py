"""Find additions that an engine fuses into a quantized convolution, and whose other branch is not rounded."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from radioplat.models.quantized.additions import is_addition
from radioplat.models.quantized.architecture import LayerFormats

# Modules and functions that an engine fuses behind an addition.
_FUSED = (nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.Hardtanh, nn.modules.batchnorm._BatchNorm)
_FUSED_FUNCTIONS = (torch.relu, torch.relu_, nn.functional.relu, nn.functional.relu6)
_NO_READS = ("__get__", "size", "dim")


@dataclass
class _Addition:
    """An addition: the block whose forward has it, its number there, its operands, their reads so far, its result."""

    block: str
    number: int
    operands: tuple[torch.Tensor, torch.Tensor]
    reads: tuple[int, int]
    result: torch.Tensor


@torch.no_grad()
def find_additions(
    model: nn.Module, layers: Mapping[str, LayerFormats], skip: Callable[[str], bool], run: Callable[[], object]
) -> dict[str, dict[str, str]]:
    """Return, by block and place, the format of operands to round; see :mod:`radioplat.models.quantized.additions`.

    An operand counts if the other one is the output of a quantized convolution that nothing else reads, and an
    activation of the ReLU family or BatchNorm reads the sum: other streams (transformers', ConvNeXt's) stay float.

    Args:
        layers: the layers that will be quantized.
        skip: returns whether the additions of a block stay as they are.
        run: runs images through the model.
    """
    record = _Record(model)
    with contextlib.ExitStack() as hooks:
        for name, module in model.named_modules():
            hooks.callback(module.register_forward_pre_hook(record.entering(name), with_kwargs=True).remove)
            hooks.callback(module.register_forward_hook(record.leaving(name, module)).remove)
        with record:
            run()
    places: dict[str, dict[str, str]] = {}
    for addition in record.additions:
        if skip(addition.block) or id(addition.result) not in record.activated:
            continue
        convolutions = [record.convolutions.get(id(operand), "") for operand in addition.operands]
        # What is added in place is read on as the sum.
        alone = [
            before == 1 and (operand is addition.result or record.reads[id(operand)] == 1)
            for operand, before in zip(addition.operands, addition.reads, strict=True)
        ]
        for i, (name, only) in enumerate(zip(convolutions, alone, strict=True)):
            formats = layers.get(name)
            if formats is not None and formats.activations is not None and only:
                places.setdefault(addition.block, {})[f"{addition.number}_{1 - i}"] = formats.activations
                break  # of two convolutions the first is fused
    return places


class _Record(TorchFunctionMode):
    """Records a run: additions, outputs of convolutions, and how often each tensor is read."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.additions: list[_Addition] = []
        self.convolutions: dict[int, str] = {}
        self.activated: set[int] = set()
        self.reads: Counter[int] = Counter()
        self._alive: list[torch.Tensor] = []  # so that no identity is used again
        self._inside: list[tuple[str, Counter[str]]] = [("", Counter())]

    def entering(self, name: str) -> Callable[..., None]:
        """Return the hook that notes that a module begins."""

        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            """Note it, and which tensors activations and normalization read."""
            self._inside.append((name, Counter()))
            if isinstance(module, _FUSED):
                self.activated |= {id(x) for x in args if isinstance(x, torch.Tensor)}

        return hook

    def leaving(self, name: str, module: nn.Module) -> Callable[..., None]:
        """Return the hook that notes that a module ends, and what a convolution returned."""

        def hook(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:  # noqa: ANN401
            """Note it."""
            self._inside.pop()
            if isinstance(module, nn.Conv2d) and isinstance(output, torch.Tensor):
                self._alive.append(output)
                self.convolutions[id(output)] = name

        return hook

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:  # noqa: ANN401
        """Call ``func`` and note what it reads."""
        result = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") in _NO_READS:
            return result
        tensors = [each for each in args if isinstance(each, torch.Tensor)]
        self.reads.update(map(id, tensors))
        self._alive += tensors
        if func in _FUSED_FUNCTIONS:
            self.activated |= {id(x) for x in tensors}
        if is_addition(func, args) and isinstance(result, torch.Tensor):
            for _, counts in self._inside:
                counts["additions"] += 1
            block, counts = self._inside[-1]
            self._alive.append(result)
            reads = self.reads[id(args[0])], self.reads[id(args[1])]
            self.additions.append(_Addition(block, counts["additions"] - 1, (args[0], args[1]), reads, result))
        return result
