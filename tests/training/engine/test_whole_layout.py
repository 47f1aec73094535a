"""Pieces of every way to cut parameters, put together by the layout."""

from __future__ import annotations

import pytest
import torch

from radioplat.training.engine.whole_layout import Piece, WholeLayout

SHAPES = {
    name: torch.Size(shape) for name, shape in {"b": (3, 5), "a": (7,), "e": (0,), "d": (2, 2, 2), "c": (11,)}.items()
}
GROUPS = [["b", "c"], ["a", "d"]]  # of the optimizer


def aligned() -> list[dict[str, Piece | None]]:
    """Both ranks have all of it, each parameter at a multiple of 16."""
    return [
        {
            name: Piece(g, 16 * i, 0, SHAPES[name].numel())
            for g, group in enumerate(GROUPS)
            for i, name in enumerate(group)
        }
    ] * 2


def groups_in(world: int) -> list[dict[str, Piece | None]]:
    """Each group is one after the other, cut into equal parts: ZeRO 1 and 2."""
    ranks = [dict.fromkeys(SHAPES) for _ in range(world)]
    for g, group in enumerate(GROUPS):
        part, begin = -(-sum(SHAPES[name].numel() for name in group) // world), 0
        for name in group:
            size = SHAPES[name].numel()
            for rank in range(world):
                start, stop = max(begin, rank * part), min(begin + size, (rank + 1) * part)
                if start < stop:
                    ranks[rank][name] = Piece(g, start - rank * part, start - begin, stop - start)
            begin += size
    return ranks


def each_in(world: int) -> list[dict[str, Piece | None]]:
    """Each parameter is cut into equal parts: ZeRO 3."""
    ranks = [dict.fromkeys(SHAPES) for _ in range(world)]
    for g, group in enumerate(GROUPS):
        begin = 0
        for name in group:
            size = SHAPES[name].numel()
            part = -(-size // world)
            for rank in range(world):
                if (real := min(part, size - rank * part)) > 0:
                    ranks[rank][name] = Piece(g, begin, rank * part, real)
            begin += part
    return ranks


CASES = {
    "ddp": aligned(),
    **{f"{f.__name__} {world}": f(world) for f in (groups_in, each_in) for world in (1, 2, 3, 5, 40)},
}


@pytest.mark.parametrize("case", CASES)
def test_every_element_comes_to_its_place(case):
    ranks = _full(case)
    whole = {name: torch.randn(shape) for name, shape in SHAPES.items()}
    flats = [[torch.full((99,), torch.nan) for _ in GROUPS] for _ in ranks]
    for mine, pieces in zip(flats, ranks, strict=True):
        for name, piece in pieces.items():
            if piece is not None:
                part = whole[name].flatten()[piece.offset : piece.offset + piece.size]
                mine[piece.flat][piece.start : piece.start + piece.size] = part
    layout = WholeLayout(SHAPES, ranks)
    buffer = torch.full((layout.size,), torch.nan)
    for mine, spans in zip(flats, layout.spans, strict=True):
        for flat, start, place, size in spans:
            buffer[place : place + size] = mine[flat][start : start + size]
    for name, value in whole.items():
        assert torch.equal(buffer[layout.places[name] :][: value.numel()].view(value.shape), value), name


def test_what_is_adjacent_is_copied_at_once_and_nothing_twice():
    assert [len(spans) for spans in WholeLayout(SHAPES, _full("ddp")).spans] == [2, 0]
    assert [len(spans) for spans in WholeLayout(SHAPES, _full("groups_in 2")).spans] == [2, 2]
    assert sum(len(spans) for spans in WholeLayout(SHAPES, _full("each_in 2")).spans) == 8


def _full(case: str) -> list[dict[str, Piece | None]]:
    return [{name: pieces.get(name) for name in SHAPES} for pieces in CASES[case]]
