"""Assignment of micro-batches to steps and ranks: dealt round-robin, padded to the same number on each rank."""

from __future__ import annotations

from dataclasses import dataclass

PADDING = -1


@dataclass(frozen=True)
class MicroBatchSchedule:
    """The micro-batches of each step and rank of a run.

    Attributes:
        micro_batches: micro-batches of one global batch, without padding.
        world_size: training workers.
    """

    micro_batches: int
    world_size: int

    @property
    def per_rank(self) -> int:
        """Number of micro-batches of a step on each rank, padding included."""
        return -(-self.micro_batches // self.world_size)

    def of_step(self, step: int) -> list[int]:
        """Return the micro-batches of one step, with :data:`PADDING`; number j goes to rank j mod world size."""
        real = range(step * self.micro_batches, (step + 1) * self.micro_batches)
        return [*real, *[PADDING] * (self.per_rank * self.world_size - self.micro_batches)]

    def of_rank(self, step: int, rank: int) -> list[int]:
        """Return the micro-batches of one step on one rank, in the order in which it consumes them."""
        return self.of_step(step)[rank :: self.world_size]
