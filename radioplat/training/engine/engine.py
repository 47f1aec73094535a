"""The interface between an engine and the training loop, the checkpoints and the moving average."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from radioplat.common.collectives import is_first
from radioplat.training.engine.whole_layout import Piece
from radioplat.training.engine.whole_tensors import State, Values, WholeTensors

WEIGHTS = "weights"  # the kind of values that the optimizer updates, beside its moments
# Keys in a checkpoint; parameter names cannot equal them, because they all contain dots.
LOSS_SCALE = "loss_scale"
LARGEST = "largest_gradients"


class Engine(ABC):
    """A module that is trained on all ranks: its number format, gradient sums, optimizer and whole weights.

    Methods that take ``names`` get trainable parameters of the module by the names that the caller uses. Whole weights,
    moments and averages are fp32 and have the parameter's shape, so what one engine saves another one loads.
    """

    _held: torch.cuda.Event | None = None

    @property
    @abstractmethod
    def param_groups(self) -> list[dict[str, Any]]:
        """Groups of the optimizer; a change of ``lr`` takes effect at the next step."""

    @abstractmethod
    def __call__(self, *inputs: Any) -> Any:  # noqa: ANN401
        """Return the module's output for one micro-batch, or one piece of it."""

    @abstractmethod
    def backward(self, loss: torch.Tensor, last: bool = True) -> None:
        """Add the gradients of ``loss`` divided by the number of micro-batches of a step on this rank.

        With ``train.reduction: exact``, they are divided by the number of micro-batches of all ranks, and not averaged
        over ranks but added: then no number depends on how many ranks there are.

        Args:
            loss: scalar.
            last: whether the optimizer step follows; gradients are then averaged over all ranks, at the latest.
        """

    @abstractmethod
    def step(self) -> None:
        """Call it after each :meth:`backward`: after the last one it clips the gradients and updates the weights."""

    @abstractmethod
    def was_step_applied(self) -> bool:
        """Return whether the last :meth:`step` changed the weights; False if gradients were not finite."""

    def must_repeat(self) -> bool:
        """Return whether the last :meth:`step` had no effect and its backward passes have to be computed once more.

        That happens with ``train.reduction: exact``, where the magnitude of gradients changed much.
        """
        return False

    @abstractmethod
    def discard_gradients(self) -> None:
        """Discard the gradients of this step, so that the next step begins with none; all ranks must call it."""

    def hold(self, ready: torch.cuda.Event) -> None:
        """Let the device wait for ``ready`` before the next change of weights and moments, which it still copies."""
        self._held = ready

    def _release(self) -> None:
        """Wait on the device for the event of :meth:`hold`; to be called before each change of weights and moments."""
        if self._held is not None:
            torch.cuda.current_stream().wait_event(self._held)
            self._held = None

    @abstractmethod
    def values(self, moments: tuple[str, ...]) -> dict[str, Values]:
        """Return what the optimizer updates: :data:`WEIGHTS`, and each moment after a first step.

        They are the tensors themselves, fp32, in the shapes of :meth:`masters`; None for a moment of a whole parameter
        that never had a gradient.
        """

    @abstractmethod
    def scales(self) -> State:
        """Return what gradients are scaled by, on the CPU; {} if by nothing.

        In fp16 :data:`LOSS_SCALE`, float64 ``[4]``: the scale and the counters that change it. With ``train.reduction:
        exact`` :data:`LARGEST`, float64 ``[parameters]``: the largest gradients that quanta are made for.
        """

    @abstractmethod
    def pieces(self, names: dict[str, nn.Parameter]) -> dict[str, Piece | None]:
        """Return which part of each parameter is where in this rank's :meth:`masters`; None if none of it is."""

    @abstractmethod
    def shapes(self, names: dict[str, nn.Parameter]) -> dict[str, torch.Size]:
        """Return the shapes of the whole parameters."""

    def whole_tensors(self, names: dict[str, nn.Parameter], channel: dist.ProcessGroup | None = None) -> WholeTensors:
        """Return what gathers values like :meth:`masters` on rank 0; every rank must call this.

        Args:
            channel: group of the thread that gathers; by default that is the training thread.
        """
        return WholeTensors(self.shapes(names), self.pieces(names), self.hold, channel)

    def full_state(self, names: dict[str, nn.Parameter], moments: tuple[str, ...]) -> State:
        """Return whole fp32 weights and optimizer moments as new CPU tensors on rank 0; every rank must call this.

        Returns:
            ``<parameter>`` and ``<parameter>.<moment>`` for each parameter; moments only after a first step. In fp16
            also :data:`LOSS_SCALE`, with exact sums :data:`LARGEST`. Empty on other ranks.
        """
        whole = self.whole_tensors(names)
        whole.copy(self.values(moments))
        return stored(whole.gather()) | (self.scales() if is_first() else {})

    @abstractmethod
    def load_full_state(
        self, names: dict[str, nn.Parameter], moments: tuple[str, ...], state: State, steps: int
    ) -> None:
        """Load weights and moments from :meth:`full_state` of any engine at any world size.

        The module's weights must already have the same values: what is loaded here are the optimizer's.

        Args:
            steps: number of updates that the moments have seen.
        """

    @abstractmethod
    def masters(self) -> list[torch.Tensor]:
        """Return the fp32 tensors that this rank's optimizer updates: whole parameters, or flat tensors of several.

        The objects stay the same during the whole run.
        """

    def gather_values(self, names: dict[str, nn.Parameter], values: list[torch.Tensor]) -> State:
        """Gather ``values``, tensors with the shapes of :meth:`masters`, into whole tensors by parameter name.

        Every rank must call this; the result is fp32 on rank 0's CPU, and empty on other ranks.
        """
        whole = self.whole_tensors(names)
        whole.copy({WEIGHTS: values})
        return whole.gather().get(WEIGHTS, {})

    @abstractmethod
    def copy_values(self, names: dict[str, nn.Parameter], values: list[torch.Tensor], into: State) -> None:
        """Gather ``values`` like :meth:`gather_values`, but copy them into the tensors of ``into``, on every rank."""

    @abstractmethod
    def scatter_values(self, names: dict[str, nn.Parameter], values: list[torch.Tensor], state: State) -> None:
        """Copy whole tensors of ``state`` into ``values`` (inverse of :meth:`gather_values`); others are unchanged."""

    @abstractmethod
    def close(self) -> None:
        """Free the engine's memory; it cannot be used any more."""


def stored(kinds: dict[str, State]) -> State:
    """Return whole values of :meth:`Engine.values` by their names in a checkpoint."""
    names = ((kind, name, value) for kind, state in kinds.items() for name, value in state.items())
    return {name if kind == WEIGHTS else f"{name}.{kind}": value for kind, name, value in names}
