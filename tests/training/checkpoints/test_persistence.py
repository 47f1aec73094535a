"""What all ranks of a start learn of checkpoints that only rank 0 looks at."""

from __future__ import annotations

import json
import socket
import subprocess
import sys

RANK = """
import sys
from pathlib import Path
from types import SimpleNamespace
import torch.distributed as dist
from radioplat.training.checkpoints.persistence import Persistence
from radioplat.errors import RadioplatError
from radioplat.spec.schema.root import Spec

folder, rank, port = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
run = SimpleNamespace(spec=Spec(), folder=folder, task="distill", lease="", order_hash="h", order_fields={})
try:
    print("began at", Persistence(run, rank, 2).state.global_step)
except RadioplatError as error:
    print(error.agreed, str(error).replace("\\n", " "))
dist.destroy_process_group()
"""


def test_a_start_in_the_middle_of_a_run_asks_on_every_rank(tmp_path):
    """As after damage while the run went on: the driver has looked long ago."""
    folder = tmp_path / "distill"
    checkpoint = folder / "model_epoch_001"
    checkpoint.mkdir(parents=True)
    (checkpoint / "state.json").write_text(json.dumps({"schema": 1, "global_step": 4}))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    command = [sys.executable, "-c", RANK, folder]
    ranks = [subprocess.Popen([*command, str(r), port], stdout=subprocess.PIPE, text=True) for r in range(2)]
    try:
        lines = [rank.communicate(timeout=100)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert lines[0] == lines[1], lines
    assert lines[0].startswith("True ") and "shall the run begin anew without it?" in lines[0]
    assert [path.name for path in checkpoint.iterdir()] == ["state.json"]
