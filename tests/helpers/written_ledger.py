"""A small ledger, written as workers write it."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from radioplat.data.ledger import proof, roll_up
from radioplat.data.ledger.ledger import Ledger
from radioplat.data.ledger.lineage import Reached
from radioplat.data.ledger.roll_up import Ordered

BATCH = 6


class Order:
    """Ids that differ from positions and repeat, as an order of several passes does."""

    def slice(self, start, stop):
        position = np.arange(start, stop, dtype=np.int64)
        return SimpleNamespace(position=position, sample_id=(position * 7 + 3) % 11)


def write(folder, attempt: int, steps: range, world: int = 1, change=lambda step, rows: rows, flush: int = 2) -> None:
    """What ``world`` workers write down of ``steps``, two samples a micro-batch; ``change`` alters a step's rows."""
    books = [Ledger(folder, rank, attempt) for rank in range(world)]
    for step in steps:
        position = np.arange(step * BATCH, (step + 1) * BATCH)
        rows = change(step, np.stack([position, Order().slice(position[0], position[-1] + 1).sample_id], 1))
        for micro in range(0, len(rows), 2):
            part = rows[micro : micro + 2]
            rank = micro // 2 % world
            books[rank].consumed(step, rank, part[:, 0], part[:, 1], np.zeros(len(part)))
        if step % flush == flush - 1:
            [book.flush() for book in books]
    [book.flush() for book in books]


ORDERED = Ordered(Order(), "order", BATCH)
FIELDS = ("expected", "consumed", "missing", "repeated", "misplaced", "replayed", "before")


class Killed(BaseException):
    """The process ends here."""


def prove(folder, steps: int, attempt: int | None = None, ordered=ORDERED, starts=(), **how):
    return proof.prove(folder, ordered, Reached(steps, attempt, starts), **how)


def roll(folder, steps: int, attempt: int | None = None, ordered=ORDERED, starts=(), **how):
    return roll_up.roll_up(folder, ordered, Reached(steps, attempt, starts), **how)


def counted(folder, steps: int, attempt: int | None = None, **how) -> tuple:
    result = prove(folder, steps, attempt, **how)
    return tuple(getattr(result, name) for name in FIELDS)
