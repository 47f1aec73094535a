"""Which grain goes where: a step's micro-batches dealt to the ranks, padded to the same number each."""

from __future__ import annotations

from dataclasses import dataclass

PADDING = -1


@dataclass(frozen=True)
class Grains:
    """The cut of a run's steps.

    Attributes:
        micro_batches: real grains of one global batch.
        world_size: training workers.
    """

    micro_batches: int
    world_size: int

    @property
    def per_rank(self) -> int:
        """Micro-batches of a step on each rank, padding included."""
        return -(-self.micro_batches // self.world_size)

    def of_step(self, step: int) -> list[int]:
        """Grains of one step, as dealt round-robin: number j goes to rank j mod world size."""
        real = range(step * self.micro_batches, (step + 1) * self.micro_batches)
        return [*real, *[PADDING] * (self.per_rank * self.world_size - self.micro_batches)]

    def of_rank(self, step: int, rank: int) -> list[int]:
        """Grains of one step on one rank, in the order they are consumed."""
        return self.of_step(step)[rank :: self.world_size]
