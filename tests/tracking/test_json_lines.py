"""Lines of a file that killed writers left torn."""

from __future__ import annotations

from radioplat.tracking.json_lines import append_line, read_lines


def test_a_torn_tail_costs_its_own_line_alone(tmp_path):
    path = tmp_path / "folder" / "events.jsonl"
    assert read_lines(path) == []
    append_line(path, {"a": 1})
    with open(path, "ab") as file:
        file.write(b'{"b": 2, "torn": "\xc3')
    append_line(path, {"c": 3})
    assert read_lines(path) == [{"a": 1}, {"c": 3}]


def test_what_is_no_object_is_left_out(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'[1]\n\nnull\n{"a": 1}\n2')
    assert read_lines(path) == [{"a": 1}]
