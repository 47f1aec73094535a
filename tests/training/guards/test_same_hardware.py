"""Warnings where equal bits cannot be had."""

from __future__ import annotations

import torch

from radioplat.training.guards.same_hardware import SameHardware, kind_of

CPU = torch.device("cpu")


def test_the_same_hardware_is_no_news():
    lines: list[str] = []
    hook = SameHardware(CPU, lines.append)
    hook.load_state_dict(SameHardware(CPU, lines.append).state_dict())
    assert lines == []


def test_other_threads_and_another_kind_are_named():
    lines: list[str] = []
    before = torch.get_num_threads()
    state = SameHardware(CPU, lines.append).state_dict()
    try:
        torch.set_num_threads(before + 1)
        SameHardware(CPU, lines.append).load_state_dict(state)
    finally:
        torch.set_num_threads(before)
    assert len(lines) == 1 and f"{before} thread(s)" in lines[0] and f"{before + 1} thread(s)" in lines[0]
    assert torch.__version__ in kind_of(CPU)
