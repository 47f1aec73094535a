"""Data parallelism without sharding: each rank has all weights, gradients and optimizer states.

It takes the gradients of micro-batches in the number format of the weights, as autograd computes them, and adds them up
in fp32. torch's DistributedDataParallel would exchange them in 16 bits, and only those of the last micro-batch, so the
exchange is our own (:mod:`radioplat.training.engine.gradient_sums`), like the ``main_grad`` of Megatron-LM (Narayanan
et al. 2021). Weights, gradients and moments are in flat tensors, one for each optimizer group: then a step needs a few
kernels, not a few for each parameter.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from radioplat.optim.lamb import Lamb
from radioplat.optim.optimizer import build_optimizer, create_state
from radioplat.spec.resolved.precision import precision_of
from radioplat.spec.resolved.reduction import is_exact
from radioplat.spec.resolved.zero import BUCKET
from radioplat.spec.schema.root import Spec
from radioplat.spec.schema.train import Precision
from radioplat.training.engine.batchnorm_state import round_statistics
from radioplat.training.engine.engine import LARGEST, WEIGHTS, Engine
from radioplat.training.engine.exact_gradients import ExactGradients, GradientPart, clip_factor, cut
from radioplat.training.engine.gradient_sums import GradientPiece, GradientSums
from radioplat.training.engine.whole_layout import Piece
from radioplat.training.engine.whole_tensors import State, Values

_ALIGNMENT = 64  # elements: each parameter begins at a multiple of 128 bytes, as kernels for matrices prefer


class _Flat:
    """Weights and gradients of an optimizer group in flat tensors.

    Args:
        parameters: in the order of the flat tensors. They become views of them, and so do their gradients.

    Attributes:
        starts: offset of each parameter.
        weights: in the number format of forward and backward, ``[elements]``.
        master: fp32 ``[elements]``; the same tensor as ``weights`` in fp32.
        total: fp32 gradients, ``[elements]``.
        current: gradients of one micro-batch in 16 bits, ``[elements]``; None in fp32.
    """

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters, self.starts, size = parameters, [], 0
        for parameter in parameters:
            self.starts.append(size)
            size += -(-parameter.numel() // _ALIGNMENT) * _ALIGNMENT
        like = parameters[0].detach()
        self.weights = like.new_zeros(size)
        for view, parameter in zip(self._views(self.weights), parameters, strict=True):
            view.copy_(parameter.detach())
            parameter.data = view
        _broadcast(self.weights)
        low = like.dtype is not torch.float32
        self.master = self.weights.float() if low else self.weights
        self.total = torch.zeros_like(self.master)
        self.current = torch.zeros_like(self.weights) if low else None
        gradients = self.total if self.current is None else self.current
        for view, parameter in zip(self._views(gradients), parameters, strict=True):
            parameter.grad = view

    def _views(self, flat: torch.Tensor) -> Iterator[torch.Tensor]:
        for start, parameter in zip(self.starts, self.parameters, strict=True):
            yield flat.narrow(0, start, parameter.numel()).view(parameter.shape)

    def pieces(self, numbers: dict[nn.Parameter, int]) -> Iterator[GradientPiece]:
        """Yield pieces of about :data:`BUCKET` elements, cut between parameters."""
        begin, end = 0, self.weights.numel()
        for following, stop in enumerate([*self.starts[1:], end], 1):
            start = self.starts[begin]
            if stop - start >= BUCKET or stop == end:
                part, members = slice(start, stop), self.parameters[begin:following]
                current = None if self.current is None else self.current[part]
                yield GradientPiece(self.total[part], current, frozenset(numbers[p] for p in members))
                begin = following

    def exact_parts(self) -> list[GradientPart]:
        """Return the parts for exact sums."""
        sizes = [parameter.numel() for parameter in self.parameters]
        gradients = self.total if self.current is None else self.current
        return cut(gradients, self.total, list(zip(self.starts, sizes, strict=True)))


class DdpEngine(Engine):
    """Data parallelism over all ranks, with fp32 weights in the optimizer and fp32 sums of gradients.

    In bf16, forward and backward have a rounded copy of the weights. As with DeepSpeed, the fp32 weights begin with the
    rounded values, frozen parameters are rounded, and parameters without gradient have zeros: weight decay moves them.

    Args:
        micro_batches: number of micro-batches of one optimizer step on this rank, padding included.

    Raises:
        SpecError: a parameter group is invalid (see :func:`build_optimizer`).
    """

    def __init__(self, module: nn.Module, spec: Spec, micro_batches: int) -> None:
        self._module, self._micro_batches, self._clip = module, micro_batches, spec.train.clip_grad_norm
        self._low = precision_of(spec.train) is not Precision.fp32
        if self._low:
            for parameter in module.parameters():
                parameter.data = parameter.data.to(torch.bfloat16)
            round_statistics(module, torch.bfloat16)
        for parameter in module.parameters():
            if not parameter.requires_grad:
                _broadcast(parameter.data)
        self._optimizer = build_optimizer(module, spec.train.optim)
        # Backward passes reach the last parameters first.
        order = {parameter: -i for i, parameter in enumerate(module.parameters())}
        self._flats = [_Flat(sorted(g["params"], key=order.__getitem__)) for g in self._optimizer.param_groups]
        self._places: dict[nn.Parameter, Piece] = {}
        self._masters = self._take_over(whole=isinstance(self._optimizer, Lamb))
        numbers = {parameter: i for i, parameter in enumerate(self._places)}
        pieces = [piece for flat in self._flats for piece in flat.pieces(numbers)]
        last = {number: order[parameter] for parameter, number in numbers.items()}
        pieces.sort(key=lambda piece: max(last[number] for number in piece.members))  # by when they are complete
        self._pieces = pieces
        self._sums: GradientSums | None = None
        self._exact: ExactGradients | None = None
        if is_exact(spec.train):
            parts = [part for flat in self._flats for part in flat.exact_parts()]
            self._exact = ExactGradients(parts, spec.global_batch_size // spec.dataset.batch_size, micro_batches)
        else:
            self._sums = GradientSums(list(self._places), pieces)
        self._last = self._applied = self._repeats = False

    def _take_over(self, whole: bool) -> list[torch.Tensor]:
        """Let the optimizer update the flat tensors, or views of ``whole`` parameters, and return them."""
        masters: list[torch.Tensor] = []
        for group, flat in zip(self._optimizer.param_groups, self._flats, strict=True):
            group["params"] = []
            for start, parameter in zip(flat.starts, flat.parameters, strict=True):
                part = slice(start, start + parameter.numel()) if whole else slice(None)
                if whole or not group["params"]:
                    master = flat.master[part]
                    master.grad = flat.total[part]
                    group["params"].append(master)
                    masters.append(master)
                self._places[parameter] = Piece(len(masters) - 1, 0 if whole else start, 0, parameter.numel())
        return masters

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Groups of the optimizer."""
        return self._optimizer.param_groups

    def __call__(self, *inputs: Any) -> Any:  # noqa: ANN401
        """Run the module."""
        return self._module(*inputs)

    def backward(self, loss: torch.Tensor, last: bool = True) -> None:
        """Add gradients; with ``last``, ranks exchange the sums while the backward pass runs, unless they are exact."""
        self._last = last
        if self._exact is not None:
            loss.backward()
            self._exact.add()
        if self._sums is not None:
            self._sums.backward(loss / self._micro_batches, last)

    @torch.no_grad()
    def step(self) -> None:
        """Clip the gradients and update the weights after the last micro-batch, if all gradients are finite."""
        self._applied = self._repeats = False
        if not self._last:
            return
        if not self._finish_sums():
            self._repeats = True
            return
        world = 1 if self._exact is not None else dist.get_world_size()
        scale = clip_factor([torch.linalg.vector_norm(piece.total) / world for piece in self._pieces], self._clip)
        if scale is not None:
            if scale / world != 1:
                for flat in self._flats:
                    flat.total.mul_(scale / world)
            self._release()
            self._optimizer.step()
            self._round()
            self._applied = True
        self.discard_gradients()
        self._last = False

    def _finish_sums(self) -> bool:
        """Wait for the sums over all ranks; return False if they are not exact, but were to be."""
        if self._sums is not None:
            self._sums.wait()
        return self._exact is None or self._exact.finish()

    def must_repeat(self) -> bool:
        """Return True if the gradients' quanta did not fit the last step."""
        return self._repeats

    def _round(self) -> None:
        if self._low:
            for flat in self._flats:
                flat.weights.copy_(flat.master)

    def was_step_applied(self) -> bool:
        """Return False if gradients were not finite, in any number format."""
        return self._applied

    def discard_gradients(self) -> None:
        """Set the gradients of this step to zero."""
        for sums in (self._sums, self._exact):
            if sums is not None:
                sums.clear()

    def values(self, moments: tuple[str, ...]) -> dict[str, Values]:
        """Return the fp32 weights and the moments."""
        values: dict[str, Values] = {WEIGHTS: self._masters}
        for moment in moments:
            present = [self._optimizer.state[master].get(moment) for master in self._masters]
            if all(value is not None for value in present):
                values[moment] = present
        return values

    def scales(self) -> State:
        """Return the magnitudes of gradients, if sums are exact; there is no fp16."""
        return {} if self._exact is None else {LARGEST: self._exact.largest.clone()}

    def pieces(self, names: dict[str, nn.Parameter]) -> dict[str, Piece | None]:
        """Return the places of whole parameters, the same on every rank."""
        return {name: self._places[parameter] for name, parameter in names.items()}

    def shapes(self, names: dict[str, nn.Parameter]) -> dict[str, torch.Size]:
        """Return the shapes of the parameters."""
        return {name: parameter.shape for name, parameter in names.items()}

    @torch.no_grad()
    def load_full_state(
        self, names: dict[str, nn.Parameter], moments: tuple[str, ...], state: State, steps: int
    ) -> None:
        """Load whole weights and moments."""
        self.scatter_values(names, self._masters, state)
        self._round()
        if self._exact is not None:
            self._exact.load(state.get(LARGEST))
        if not steps:
            return
        for master in self._masters:
            create_state(self._optimizer, master, moments, steps)
        for moment in moments:
            values = [self._optimizer.state[master][moment] for master in self._masters]
            stored = {name: state[f"{name}.{moment}"] for name in names if f"{name}.{moment}" in state}
            self.scatter_values(names, values, stored)

    def masters(self) -> list[torch.Tensor]:
        """Return a flat tensor for each optimizer group; for LAMB, which needs norms, one for each parameter."""
        return list(self._masters)

    @torch.no_grad()
    def copy_values(self, names: dict[str, nn.Parameter], values: list[torch.Tensor], into: State) -> None:
        """Copy the parameters' parts of tensors like :meth:`masters` into those of ``into``."""
        if names:
            parts = [self._part(parameter, values) for parameter in names.values()]
            torch._foreach_copy_([into[name] for name in names], parts)

    @torch.no_grad()
    def scatter_values(self, names: dict[str, nn.Parameter], values: list[torch.Tensor], state: State) -> None:
        """Copy whole tensors into tensors like :meth:`masters`."""
        for name, parameter in names.items():
            if name in state:
                self._part(parameter, values).copy_(state[name])

    def _part(self, parameter: nn.Parameter, values: list[torch.Tensor]) -> torch.Tensor:
        """Return the view of the parameter's values in tensors like :meth:`masters`."""
        place = self._places[parameter]
        return values[place.flat].narrow(0, place.start, place.size).view(parameter.shape)

    def close(self) -> None:
        """Free gradients and optimizer states; the module keeps its weights."""
        for parameter in self._places:
            parameter.grad = None
        if self._sums is not None:
            self._sums.close()
        self._exact = None
        for master in self._masters:
            master.grad = None
        self._optimizer.state.clear()
        self._flats.clear()
        self._masters.clear()
        self._pieces.clear()


def _broadcast(tensor: torch.Tensor) -> None:
    """Give every rank the values of rank 0; as bytes, because not every backend knows every number format."""
    if dist.get_world_size() > 1:
        values = tensor.contiguous()
        dist.broadcast(values.view(-1).view(torch.uint8), 0)
        tensor.copy_(values)
