"""Pieces of stage 3, whose padding must not be sent over what other ranks own."""

from __future__ import annotations

import pytest
import torch

from radioplat.training.engine.whole_layout import Piece, WholeLayout


@pytest.mark.parametrize(("world", "sizes"), [(2, (5, 2, 6)), (4, (13, 4, 3)), (8, (169, 8, 5)), (3, (64, 3, 7))])
def test_every_element_is_in_one_span(world, sizes):
    shapes = {str(i): torch.Size([size]) for i, size in enumerate(sizes)}
    ranks: list[dict[str, Piece | None]] = []
    for rank in range(world):
        pieces, start = {}, 0
        for name, shape in shapes.items():
            share = -(-shape.numel() // world)
            offset = rank * share
            real = min(share, shape.numel() - offset)
            pieces[name] = Piece(0, start, offset, real) if real > 0 else None
            start += share
        ranks.append(pieces)
    layout = WholeLayout(shapes, ranks)
    written = torch.zeros(layout.size, dtype=torch.int64)
    for spans in layout.spans:
        for span in spans:
            written[span.place : span.place + span.size] += 1
    for name, shape in shapes.items():
        place = layout.places[name]
        assert (written[place : place + shape.numel()] == 1).all(), f"{name}: {written.tolist()}"
