"""The package and its pages are free of the words that ``benchmarks/judges/house_words.py`` lists."""

from __future__ import annotations

from pathlib import Path

from benchmarks.judges.house_words import places


def test_no_word_of_a_private_dialect():
    assert [f"{place}: {kind} {word}" for kind, word, place in places(Path(__file__).parents[1])] == []
