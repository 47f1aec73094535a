"""Garbage collection of Python at agreed steps, so that no rank stops within a step while the others wait for it."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

import torch

EVERY = 50  # steps between two collections


@contextlib.contextmanager
def collected_at_steps() -> Iterator[None]:
    """In this block, Python collects no garbage of its own accord; :func:`collect_at` does.

    What exists at the beginning (modules, the model) is not looked at again until the block ends. What the process had
    frozen before stays so: Python cannot thaw a part, and looking through all modules again takes half a second.
    """
    automatic, frozen = gc.isenabled(), gc.get_freeze_count() > 0
    gc.collect()
    if not frozen:
        gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        if not frozen:
            gc.unfreeze()
        if automatic:
            gc.enable()


def free_memory(device: torch.device) -> None:
    """Free what only cycles of objects hold, and return unused memory to the GPU, before something large is built."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def collect_at(step: int) -> None:
    """Collect garbage if ``step`` is one of those at which all ranks do."""
    if step % EVERY == EVERY - 1:
        gc.collect()
