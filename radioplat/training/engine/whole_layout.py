"""Where the pieces of whole tensors are on each rank, and where rank 0 puts them together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch


class Piece(NamedTuple):
    """The part of a parameter that this rank's optimizer updates.

    Attributes:
        flat: index of the flat tensor in ``masters``.
        start: of the part, in that tensor.
        offset: of the part, in the parameter.
        size: number of elements.
    """

    flat: int
    start: int
    offset: int
    size: int


class Span(NamedTuple):
    """Adjacent pieces, copied at once.

    Attributes:
        flat: index of the flat tensor in ``masters``.
        start: in that tensor.
        place: in the buffer of whole tensors.
        size: number of elements.
    """

    flat: int
    start: int
    place: int
    size: int


class WholeLayout:
    """The order of whole tensors in one flat buffer, such that pieces that are adjacent on a rank stay adjacent in it.

    Args:
        shapes: of the parameters, by name.
        ranks: each rank's piece of each parameter; None if it has none.

    Attributes:
        places: start of each parameter in the buffer, by name.
        size: elements of the buffer. Between parameters there may be unused ones.
        spans: by rank, what it gives to the buffer. Rank 0 gives all its pieces, and others what rank 0 lacks.
    """

    def __init__(self, shapes: Mapping[str, torch.Size], ranks: Sequence[Mapping[str, Piece | None]]) -> None:
        firsts: dict[str, tuple[int, int, int, int]] = {}  # (flat, rank, start, offset) of each parameter's first piece
        for rank, pieces in enumerate(ranks):
            for name, piece in pieces.items():
                if piece is not None and name not in firsts:
                    firsts[name] = (piece.flat, rank, piece.start, piece.offset)
        self.places: dict[str, int] = {}
        self.size, before = 0, None
        order = sorted(firsts, key=lambda name: firsts[name])
        for name in order:
            flat, rank, start, offset = firsts[name]
            place = self.size
            if before is not None and before[:2] == (flat, rank):
                place = max(place, before[2] + start - offset)  # keeps the gap that aligns parameters
            self.places[name], self.size = place, place + shapes[name].numel()
            before = flat, rank, place + offset - start
        self.places |= {name: self.size for name in shapes if name not in firsts}  # parameters without elements
        self.spans = [self._spans(order, ranks[0], shapes)]
        lacks = {name for name in order if (own := ranks[0][name]) is None or own.size < shapes[name].numel()}
        for pieces in ranks[1:]:
            mine = {name: pieces[name] if name in lacks else None for name in order}
            self.spans.append(self._spans(order, mine, shapes))

    def _spans(
        self, order: Sequence[str], pieces: Mapping[str, Piece | None], shapes: Mapping[str, torch.Size]
    ) -> list[Span]:
        """Return the spans of one rank, in the order of the buffer."""
        spans: list[Span] = []
        previous = None
        ended = False  # whether the piece before is the end of its parameter
        for name in order:
            if (piece := pieces[name]) is not None:
                place = self.places[name] + piece.offset
                last = spans[-1] if previous is not None else None  # no other rank's piece is between them
                # What lies between two pieces may be sent with them only if it is nobody's: padding between parameters.
                joins = place == last.place + last.size or (ended and piece.offset == 0) if last is not None else False
                same = last is not None and (last.flat, last.place - last.start) == (piece.flat, place - piece.start)
                if last is not None and joins and same:
                    spans[-1] = last._replace(size=place + piece.size - last.place)
                else:
                    spans.append(Span(piece.flat, piece.start, place, piece.size))
                ended = piece.offset + piece.size == shapes[name].numel()
            previous = piece
        return spans
