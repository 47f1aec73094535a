"""How grains are dealt to ranks in blocks. That they arrive so is tested end to end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from radioplat.data.grains import Grains
from radioplat.data.stream import deal


@given(st.integers(1, 9), st.integers(1, 5), st.integers(0, 6), st.integers(1, 6), st.integers(1, 9))
def test_round_robin_gives_each_rank_its_grains_in_order(micro_batches, world, start, steps, most):
    grains = Grains(micro_batches, world)
    blocks = deal(grains, start, start + steps, most)
    for rank in range(world):
        own = [grain for block in blocks[rank::world] for grain in block]
        assert own == [grain for step in range(start, start + steps) for grain in grains.of_rank(step, rank)]
    assert len(blocks) % world == 0 and all(1 <= len(block) <= most for block in blocks)
