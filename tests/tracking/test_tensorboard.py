"""Event files as TensorBoard reads them: records of protobufs."""

from __future__ import annotations

import struct

import pytest

from radioplat.tracking.tensorboard import FOLDER, EventFiles


def events(folder):
    """Every event of a folder: length, its checksum, a protobuf, its checksum."""
    from tensorboardX.proto.event_pb2 import Event

    for path in sorted((folder / FOLDER).glob("*tfevents*")):
        data, at = path.read_bytes(), 0
        while at < len(data):
            (length,) = struct.unpack("<Q", data[at : at + 8])
            yield Event.FromString(data[at + 12 : at + 12 + length])
            at += 16 + length


def test_scalars_by_name_and_step(tmp_path):
    writer = EventFiles(tmp_path, True, 1)
    writer.log(1, {"loss/clip/summary": 0.5, "lr": 2, "bad": float("nan"), "word": "x"})
    writer.log(2, {"loss/clip/summary": 0.25})
    writer.close()
    found = [(e.step, v.tag, v.simple_value) for e in events(tmp_path) for v in e.summary.value]
    assert found == [(1, "loss/clip/summary", 0.5), (1, "lr", 2.0), (2, "loss/clip/summary", 0.25)]


def test_a_later_start_drops_the_steps_that_it_takes_again(tmp_path):
    for begin in (1, 6):
        writer = EventFiles(tmp_path, True, begin)
        writer.log(begin, {"loss": 1.0})
        writer.close()
    starts = [e.step for e in events(tmp_path) if e.HasField("session_log")]
    assert starts[-1] == 6


@pytest.mark.parametrize("step", [1, 2])
def test_off_writes_nothing(tmp_path, step):
    writer = EventFiles(tmp_path, False, step)
    writer.log(step, {"loss": 1.0})
    writer.close()
    assert not list(tmp_path.iterdir())
