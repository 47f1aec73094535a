"""Reads what W&B wrote for an offline run."""

import json
import struct
import time


def records(path):
    """Records of a .wandb file: LevelDB's log format (blocks of 32 KiB, header crc32, length, type) of protobufs."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, parts = path.read_bytes(), 7, []
    assert data[:4] == b":W&B"
    while at + 7 <= len(data):
        room = 32768 - at % 32768
        if room < 7:
            at += room
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        if at + 7 + length > len(data):
            return  # still being written
        parts.append(data[at + 7 : at + 7 + length])
        at += 7 + length
        if kind in (1, 4):  # a full record, or the last part of one
            record = Record()
            record.ParseFromString(b"".join(parts))
            parts = []
            yield record


def history(run_file):
    """Every line that was logged, as a dict."""
    return [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for record in records(run_file)
        if record.HasField("history")
    ]


def artifacts(run_file):
    """(name, type, digest, whether it was used, metadata, names of its files) of each artifact of a run."""
    found = [record.artifact for record in records(run_file) if record.HasField("artifact")]
    return [
        (a.name, a.type, a.digest, a.use_after_commit, json.loads(a.metadata), [e.path for e in a.manifest.contents])
        for a in found
    ]


def run_files(folder, killed=False):
    """The offline run files, once each holds its last record: W&B's process writes on after ``finish`` returned.

    Args:
        killed: all but the last may be of starts that were killed, which hold no such record.
    """
    files = sorted(folder.glob("wandb/offline-run-*/*.wandb"))
    until = time.monotonic() + 30
    awaited = files[-1:] if killed else files
    while not all(any(record.HasField("exit") for record in records(file)) for file in awaited):
        assert time.monotonic() < until, "W&B did not close the run file"
        time.sleep(0.05)
    return files
