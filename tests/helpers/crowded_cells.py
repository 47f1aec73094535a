"""Cells of printed tables and of HTML pages that hold more than one number."""

from __future__ import annotations

import html
import re

_NUMBER = re.compile(r"(?<![\w.])[+-]?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
_PROSE = 5  # words; a sentence in a cell may name several numbers


def crowded_cells(text: str) -> list[str]:
    """The cells of ``text``, a page or what a command printed, with more than one number; sentences are left out."""
    cells = [html.unescape(cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", text, re.DOTALL)]
    for line in text.splitlines():
        if line.startswith("│"):
            cells += line.strip("│").split("│")[1:]
    assert cells, "there is no table"
    return [cell for cell in cells if len(_NUMBER.findall(cell)) > 1 and len(cell.split()) < _PROSE]
