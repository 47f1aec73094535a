"""A checkpoint that one worker reads for all, since the others may not see its disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from radioplat.common import collectives
from radioplat.common.ranks import Ranks
from radioplat.models.on_meta import without_random_values
from radioplat.models.weights.model_format import Format, ModelT


def load_together(
    ranks: Ranks, form: Format[Any, ModelT], checkpoint: Path, where: str = "", ema: bool | None = None
) -> ModelT:
    """Open a checkpoint on every rank: rank 0 reads and checks it, the others get its weights.

    Args:
        form: of the checkpoint.
        where: the spec field of the path, for messages.
        ema: as of :meth:`Format.load`.

    Returns:
        The model, in fp32 and evaluation mode, on the CPU.

    Raises:
        WeightsError: on every rank, as :meth:`Format.load` on rank 0.
    """
    opened: list[Any] = []

    def read() -> Any:
        """Open the checkpoint; return its architecture, as the model has it after loading."""
        opened.append(form.load(checkpoint, where, ema))
        return opened[0].architecture

    architecture = ranks.from_first(read)

    def build() -> Any:
        """Build the same model with any weights."""
        with without_random_values():
            return form.build(architecture, where)

    model: Any = ranks.alike(lambda: opened[0] if ranks.rank == 0 else build()).eval()
    if ranks.count > 1:
        with ranks.waiting():
            collectives.broadcast_tensors(t for t in model.state_dict().values() if isinstance(t, torch.Tensor))
    return model
