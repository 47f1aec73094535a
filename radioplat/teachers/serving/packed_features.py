"""What a teacher answers; nothing here imports torch, for who only passes answers on has no use for it."""

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
    """Features as bf16 tensors or as uint16 arrays of their bits, with the seconds their forward took.

    Attributes:
        cached: of the samples that were looked up in a feature cache, how many were there and how many not; None
            where there is no cache.
    """

    summary: Array | None
    spatial: Array | None
    named: dict[str, Array]
    seconds: float
    cached: tuple[int, int] | None = None

    def __len__(self) -> int:
        return len(next(a for a in (self.summary, self.spatial, *self.named.values()) if a is not None))

    def map(self, function: Callable[[Array], Array]) -> Packed:
        """``function`` of every array."""
        return Packed(
            None if self.summary is None else function(self.summary),
            None if self.spatial is None else function(self.spatial),
            {name: function(array) for name, array in self.named.items()},
            self.seconds,
        )

    def taking(self, seconds: float) -> Packed:
        """The same, with another time."""
        return replace(self, seconds=seconds)

    def rows(self, start: int, stop: int) -> Packed:
        """Samples ``start`` to ``stop``, with their share of the time."""
        if (start, stop) == (0, len(self)):
            return self
        return self.map(lambda a: a[start:stop]).taking(self.seconds * (stop - start) / len(self))

    @property
    def nbytes(self) -> int:
        """Bytes that travel."""
        return sum(a.nbytes for a in (self.summary, self.spatial, *self.named.values()) if a is not None)
