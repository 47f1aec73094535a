"""Garbage is collected at agreed steps, and the process is afterwards as it was."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from radioplat.training.loop.garbage import EVERY, collect_at, collected_at_steps, free_memory


class Node:
    """Refers to itself: only the collector frees it."""

    def __init__(self) -> None:
        self.me = self


def test_cycles_are_freed_at_the_agreed_step_and_not_before():
    with collected_at_steps():
        seen = weakref.ref(Node())
        for _ in range(20_000):  # enough for an automatic collection
            Node()
        assert seen() is not None
        collect_at(EVERY - 2)
        assert seen() is not None
        collect_at(EVERY - 1)
        assert seen() is None


@pytest.fixture
def thawed():
    """Nothing is frozen; afterwards it is again what was imported, as tests/conftest.py has it."""
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.mark.parametrize("automatic", [True, False])
def test_the_process_is_afterwards_as_it_was(automatic, thawed):
    before = gc.isenabled()
    try:
        (gc.enable if automatic else gc.disable)()
        with pytest.raises(KeyError), collected_at_steps():
            assert not gc.isenabled() and gc.get_freeze_count() > 0
            raise KeyError
        assert gc.isenabled() is automatic and gc.get_freeze_count() == 0
    finally:
        (gc.enable if before else gc.disable)()


def test_what_the_process_had_frozen_stays_so(thawed):
    gc.freeze()
    before = gc.get_freeze_count()
    with collected_at_steps():
        seen = weakref.ref(Node())
        collect_at(EVERY - 1)
        assert seen() is None
    assert gc.get_freeze_count() == pytest.approx(before, abs=100)


def test_a_cycle_is_freed_before_something_large_is_built():
    with collected_at_steps():
        seen = weakref.ref(Node())
        free_memory(torch.device("cpu"))
        assert seen() is None
