"""What all ranks of a start learn of checkpoints that only rank 0 looks at."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import torch.distributed as dist
from forked import run_ranks

from radioplat.errors import RadioplatError
from radioplat.spec.schema.root import Spec
from radioplat.training.checkpoints.persistence import Persistence


def work(folder: Path) -> None:
    """Print what a rank of a start learns."""
    dist.init_process_group("gloo")
    run = SimpleNamespace(spec=Spec(), folder=folder, task="distill", lease="", order_hash="h", order_fields={})
    try:
        print("began at", Persistence(run, dist.get_rank(), 2).state.global_step)
    except RadioplatError as error:
        print(error.agreed, str(error).replace("\n", " "))
    dist.destroy_process_group()


def test_a_start_in_the_middle_of_a_run_asks_on_every_rank(tmp_path):
    """As after damage while the run went on: the driver has looked long ago."""
    folder = tmp_path / "distill"
    checkpoint = folder / "model_epoch_001"
    checkpoint.mkdir(parents=True)
    (checkpoint / "state.json").write_text(json.dumps({"schema": 1, "global_step": 4}))
    lines = run_ranks(work, folder, seconds=100)
    assert lines[0] == lines[1], lines
    assert lines[0].startswith("True ") and "shall the run begin anew without it?" in lines[0]
    assert [path.name for path in checkpoint.iterdir()] == ["state.json"]
