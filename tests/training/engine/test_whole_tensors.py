"""What a thread gathers is what all ranks had at one step, whatever they do meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from forked import load, run_ranks

ranks = load(Path(__file__).with_name("whole_ranks.py"))
pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore::FutureWarning")]


@pytest.mark.parametrize("world", [pytest.param(1, marks=pytest.mark.proof), 2])
def test_it_is_bit_for_bit_what_the_ranks_had_when_they_copied(world, tmp_path):
    run_ranks(ranks.work, tmp_path, world=world, seconds=500)
    for rank in range(world):
        found = torch.load(tmp_path / f"{rank}.pt")
        assert len(found) == len(ranks.CASES) and not any(found.values()), found


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("room", [True, False])
def test_on_a_gpu_copies_stand_still_while_values_change(room, monkeypatch):
    """With room on the device, and without: then the next change waits for the copy to the host."""
    from radioplat.training.engine.whole_layout import Piece
    from radioplat.training.engine.whole_tensors import WholeTensors

    if not room:
        monkeypatch.setattr("radioplat.training.engine.whole_tensors.SPARE", 1.0)
    value, held = torch.randn(2**26, device="cuda"), []
    before = value.cpu()
    whole = WholeTensors({"a": torch.Size([2**13, 2**13])}, {"a": Piece(0, 0, 0, 2**26)}, held.append)
    for _ in range(2):
        value.copy_(before)
        whole.copy({"weights": [value]})
        assert bool(held) is not room
        for event in held:
            torch.cuda.current_stream().wait_event(event)
        value.zero_()
        assert torch.equal(whole.gather()["weights"]["a"].flatten(), before)
