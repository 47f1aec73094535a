"""Results of a teacher for transport.

Nothing here imports torch, because processes that only pass results on do not need it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias, Union

import numpy as np

if TYPE_CHECKING:
    import torch

Array: TypeAlias = Union[np.ndarray, "torch.Tensor"]


@dataclass(frozen=True)
class Packed:
    """Features as bf16 tensors or as uint16 arrays of their bits, with the seconds of their forward.

    Attributes:
        cached: numbers of hits and misses in a feature cache; None without a cache.
    """

    summary: Array | None
    spatial: Array | None
    named: dict[str, Array]
    seconds: float
    cached: tuple[int, int] | None = None

    def __len__(self) -> int:
        return len(self.arrays[0])

    @property
    def arrays(self) -> list[Array]:
        """All arrays or tensors."""
        return [a for a in (self.summary, self.spatial, *self.named.values()) if a is not None]

    def map(self, function: Callable[[Array], Array]) -> Packed:
        """Apply ``function`` to every array."""
        return replace(
            self,
            summary=None if self.summary is None else function(self.summary),
            spatial=None if self.spatial is None else function(self.spatial),
            named={name: function(array) for name, array in self.named.items()},
        )

    def taking(self, seconds: float) -> Packed:
        """Return a copy with another number of seconds."""
        return replace(self, seconds=seconds)

    def rows(self, start: int, stop: int) -> Packed:
        """Return samples ``start`` to ``stop``, with their share of the time."""
        if (start, stop) == (0, len(self)):
            return self
        return self.map(lambda a: a[start:stop]).taking(self.seconds * (stop - start) / len(self))

    @property
    def nbytes(self) -> int:
        """Bytes to transport."""
        return sum(array.nbytes for array in self.arrays)
