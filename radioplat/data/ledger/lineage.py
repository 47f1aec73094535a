"""Which attempt ran the steps that led to a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from radioplat.data.ledger.chain import Chain, Window
from radioplat.data.ledger.files import LedgerFile

Part = tuple[int, int, int]  # attempt, first step, last step plus 1


@dataclass(frozen=True)
class Reached:
    """A committed checkpoint.

    Attributes:
        steps: number of its steps.
        attempt: the one that wrote it; None for the last with rows.
        starts: the attempts that led to it with their first steps, in order, as the checkpoint records them; empty for
            one that does not: they are then guessed from the rows.
    """

    steps: int
    attempt: int | None = None
    starts: tuple[tuple[int, int], ...] = ()


def parts_of(chain: Chain, loose: Sequence[LedgerFile], first_step: int, reached: Reached) -> list[Part]:
    """Return the steps from ``first_step`` on that led to a checkpoint, by the attempt that ran them."""
    if reached.starts:
        stops = [*(first for _, first in reached.starts[1:]), reached.steps]
        led = [(number, first, stop) for (number, first), stop in zip(reached.starts, stops, strict=True)]
    else:
        spans: dict[int, tuple[int, int]] = {}
        rows = [(window.attempt, window.start, window.stop - 1) for window in (*chain.windows, *chain.missing)]
        for number, first, last in [*rows, *((file.attempt, file.first, file.last) for file in loose)]:
            low, high = spans.get(number, (first, last))
            spans[number] = min(low, first), max(high, last)
        led = guessed_parts(spans, reached.steps, reached.attempt)
    return [(number, max(start, first_step), stop) for number, start, stop in led if stop > max(start, first_step)]


def guessed_parts(
    spans: dict[int, tuple[int, int]], steps: int | None = None, attempt: int | None = None
) -> list[Part]:
    """Find the steps that each attempt contributed to a checkpoint, going backwards from it.

    An attempt resumes from a checkpoint of an earlier attempt, which has run at least those steps.

    Args:
        spans: first and last recorded step of each attempt.
        steps: number of steps of the checkpoint; default: the last step of ``attempt``, plus 1.
        attempt: the one that wrote it; default: the last.

    Returns:
        ``(attempt, start, stop)`` by ascending step, ``stop`` exclusive.
    """
    parts: list[Part] = []
    stop = steps
    for number in sorted(spans, reverse=True):
        first, last = spans[number]
        if attempt is not None and number > attempt:
            continue
        stop = last + 1 if stop is None else stop
        # The checkpoint's own attempt is known: rows that it lacks are missing, not those of another attempt.
        if first < stop and (last >= stop - 1 or number == attempt):
            parts.append((number, first, stop))
            stop = first
    return parts[::-1]


def led_to(window: Window, parts: Sequence[Part], first_step: int) -> bool:
    """Return True if the steps of a window led to the checkpoint of ``parts``, or no other attempt ran them."""
    if not parts or window.start < first_step:
        return False
    inside = any(
        number == window.attempt and start <= window.start and window.stop <= stop for number, start, stop in parts
    )
    return inside or window.stop <= parts[0][1]
