"""Files that are written whole: two writers never share a temporary file."""

from __future__ import annotations

import os

import pytest

from radioplat.common.atomic_files import written_aside


def test_two_writers_of_one_process_id_do_not_meet(tmp_path):
    """As on two machines, or in two containers, that share the folder."""
    path = tmp_path / "file"
    with written_aside(path) as first:
        first.write_text("first")
        with written_aside(path) as second:
            second.write_text("second")
        assert path.read_text() == "second"
    assert path.read_text() == "first" and os.listdir(tmp_path) == ["file"]


def test_a_block_that_raises_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), written_aside(path, sync=True) as aside:
        aside.write_text("new")
        raise ZeroDivisionError
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["file"]
