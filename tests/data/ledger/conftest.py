"""Small windows, and processes that end at a file operation."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from written_ledger import BATCH, Killed

from radioplat.data.ledger import chain, files, proof, roll_up


@pytest.fixture
def small_windows(monkeypatch):
    """Small windows, of several row groups."""
    for module in (proof, roll_up):
        monkeypatch.setattr(module, "WINDOW_ROWS", 4 * BATCH)
    for module in (files, proof):
        monkeypatch.setattr(module, "BLOCK_ROWS", 10)


@pytest.fixture
def kill_at(monkeypatch):
    """kill_at(n): end at the n-th file that is renamed, appended to or removed from now on; None: never."""
    left: list[int | None] = [None]

    def counting(real):
        def call(*args, **kwargs):
            if left[0] is not None:
                left[0] -= 1
                if left[0] < 0:
                    raise Killed
            return real(*args, **kwargs)

        return call

    monkeypatch.setattr(os, "replace", counting(os.replace))
    monkeypatch.setattr(chain, "append_line", counting(chain.append_line))
    monkeypatch.setattr(Path, "unlink", counting(Path.unlink))

    def kill(number: int | None) -> None:
        left[0] = number

    return kill
