"""Features of an image: one vector, one map, and further named tensors."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

KINDS = ("summary", "spatial")


@dataclass
class Features:
    """Output of a teacher or of a student backbone.

    Attributes:
        summary: ``[B, D]``, or None if it was not wanted. A RADIO student has one class token a teacher:
            ``named["tokens"]`` is ``[B, T, D]``, and its ``summary`` is the concatenation of the tokens that a summary
            loss has trained (of all of them if there is none).
        spatial: ``[B, H, W, D]``, or None.
        named: further tensors that a loss needs, e.g. ``logits`` ``[B, C]``.
    """

    summary: torch.Tensor | None = None
    spatial: torch.Tensor | None = None
    named: dict[str, torch.Tensor] = field(default_factory=dict)

    def map(self, function) -> Features:
        """Apply ``function`` to every tensor."""
        return Features(
            None if self.summary is None else function(self.summary),
            None if self.spatial is None else function(self.spatial),
            {name: function(value) for name, value in self.named.items()},
        )

    def of(self, kind: str) -> torch.Tensor:
        """Return the ``summary`` or the ``spatial`` features, which must be there."""
        value = getattr(self, kind)
        assert value is not None
        return value
