"""What is printed cannot steer the terminal: names in it come from outside."""

from __future__ import annotations

import pytest

from radioplat.common import terminal
from radioplat.errors import DataError

NAME = "a\x1b]0;title\x07b\x9b2Jc\td\x00"


@pytest.mark.parametrize(
    "show",
    [
        terminal.say,
        terminal.note,
        lambda text: terminal.show_error(DataError(text, where=text)),
        lambda text: terminal.show_table("table", ["name"], [[text]]),
        lambda text: terminal.show_table(text, ["name" * 20], []),
    ],
)
def test_control_characters_are_written_out(capsys, show):
    show(NAME)
    out, err = capsys.readouterr()
    text = out + err
    assert "a\\x1b]0;title\\x07b\\x9b2Jc" in text and "d\\x00" in text
    assert not set(text) & {chr(code) for code in (*range(9), *range(11, 32), *range(127, 160))}
