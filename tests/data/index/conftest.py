"""A small corpus of tar files."""

from __future__ import annotations

import json

import pytest


@pytest.fixture
def corpus(tmp_path, write_tar, photo):
    """Two sources, three shards, seven images."""
    for folder, shards in (("a", {"s1": 3, "s0": 2}), ("b", {"t": 2})):
        for shard, count in shards.items():
            members = [(f"{shard}-{i}.jpg", photo(40 + i, 30)) for i in range(count)]
            members += [(f"{shard}-{i}.json", json.dumps({"label": f"c{i % 2}"}).encode()) for i in range(count)]
            write_tar(tmp_path / folder / f"{shard}.tar", members)
    return tmp_path
