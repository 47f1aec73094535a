"""A process group of one: torch and DeepSpeed keep it for the whole process, so it is made once."""

from __future__ import annotations

import gc
import socket

import pytest
import torch.distributed as dist

from radioplat.distill import ds_compat


@pytest.fixture
def process_group(monkeypatch):
    """gloo, one rank, on a free loopback port; the environment that names it goes away with the test."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    alone = dict(RANK=0, LOCAL_RANK=0, WORLD_SIZE=1, LOCAL_WORLD_SIZE=1, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    for name, value in alone.items():
        monkeypatch.setenv(name, str(value))
    if not dist.is_initialized():
        ds_compat.init_distributed("gloo")
        gc.freeze()  # stage 3 collects garbage at each start: half a second for all that was imported
    assert dist.get_world_size() == 1
