"""Sum fp32 gradients over micro-batches and ranks; ranks exchange them while the last backward pass still runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from radioplat.errors import TrainingError


@dataclass
class GradientPiece:
    """A part of a flat gradient that is exchanged as one message.

    Attributes:
        total: fp32 sum over micro-batches, ``[elements]``, and after the exchange over ranks.
        current: gradients of one micro-batch in 16 bits, ``[elements]``; None if autograd adds to ``total`` itself.
        members: numbers of the parameters whose gradients are in it.
        missing: those that have not arrived in the last backward pass.
        sent: whether the exchange has begun.
    """

    total: torch.Tensor
    current: torch.Tensor | None
    members: frozenset[int]
    missing: set[int] = field(default_factory=set)
    sent: bool = False


class GradientSums:
    """Exchange pieces of flat gradients between ranks, in a fixed order, each as soon as it is complete.

    The order is the same on every rank, whatever the order in which gradients arrive, because ranks must call
    collectives in the same order. Parameters without gradient add zeros. They would hold up all pieces behind their
    own; so after a pass that left some out, the next ones look up in the graph which parameters they will reach.

    Args:
        parameters: all parameters that are in pieces, by number.
        pieces: in the order in which they are exchanged.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], pieces: Sequence[GradientPiece]) -> None:
        self._pieces, self._next, self._works = list(pieces), 0, list[dist.Work]()
        self._exchanges = dist.get_world_size() > 1
        self._open = self._left_out = False
        self._numbers = {parameter: i for i, parameter in enumerate(parameters)}
        self._piece_of = {i: piece for piece in pieces for i in piece.members}
        self._handles: list[Any] = []
        if self._exchanges:
            for number, parameter in enumerate(parameters):
                self._handles.append(parameter.register_post_accumulate_grad_hook(self._hook(number)))

    def backward(self, loss: torch.Tensor, last: bool) -> None:
        """Add the gradients of ``loss``; with ``last`` begin their exchange, which :meth:`wait` ends.

        Raises:
            TrainingError: a parameter's gradient was computed twice in the last pass, after the first was sent.
        """
        if last and self._exchanges:
            self._begin(loss)
        loss.backward()
        if last and self._exchanges:
            self._left_out |= any(piece.missing for piece in self._pieces)
            self._open = False
            self._send(complete_only=False)
        else:
            for piece in self._pieces:
                _add_current(piece)

    def wait(self) -> None:
        """Wait until the sums over all ranks are in the pieces; on a GPU the stream waits, not this thread."""
        for work in self._works:
            work.wait()
        self._works.clear()

    def _begin(self, loss: torch.Tensor) -> None:
        reached = set(self._numbers.values())
        if self._left_out:
            reached &= {self._numbers[p] for p in _leaves(loss) if p in self._numbers}
            self._left_out = len(reached) < len(self._numbers)
        for piece in self._pieces:
            piece.missing, piece.sent = set(piece.members & reached), False
        self._next, self._open = 0, True

    def _hook(self, number: int) -> Callable[[torch.Tensor], None]:
        def arrived(parameter: torch.Tensor) -> None:
            """Note that the gradient of this micro-batch is complete, and send the pieces that now are."""
            if not self._open:
                return
            piece = self._piece_of[number]
            if piece.sent:
                raise TrainingError(
                    "the gradient of a parameter was computed after it was sent to the other ranks",
                    where="train.engine",
                    hint="Take train.engine=deepspeed, or checkpointing without use_reentrant.",
                )
            piece.missing.discard(number)
            if not piece.missing:
                self._send(complete_only=True)

        return arrived

    def _send(self, complete_only: bool) -> None:
        while self._next < len(self._pieces):
            piece = self._pieces[self._next]
            if complete_only and piece.missing:
                return
            _add_current(piece)
            piece.sent = True
            self._works.append(dist.all_reduce(piece.total, async_op=True))
            self._next += 1

    def clear(self) -> None:
        """Set all sums to zero, after exchanges in progress have ended."""
        self.wait()
        for piece in self._pieces:
            piece.total.zero_()
            if piece.current is not None:
                piece.current.zero_()

    def close(self) -> None:
        """Remove the hooks on the parameters."""
        for handle in self._handles:
            handle.remove()
        self._pieces.clear()
        self._piece_of.clear()


@torch.no_grad()
def _add_current(piece: GradientPiece) -> None:
    if piece.current is not None:
        piece.total.add_(piece.current)
        piece.current.zero_()


def _leaves(loss: torch.Tensor) -> Iterable[torch.Tensor]:
    """Yield the tensors that a backward pass from ``loss`` would give gradients to."""
    visited, waiting = {loss.grad_fn}, [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None:
            continue
        if (variable := getattr(node, "variable", None)) is not None:
            yield variable
        for following, _ in node.next_functions:
            if following not in visited:
                visited.add(following)
                waiting.append(following)
