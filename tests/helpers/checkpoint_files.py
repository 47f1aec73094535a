"""Checkpoints that another version, or damage, has changed."""

from __future__ import annotations

import hashlib
import json

from safetensors import safe_open
from safetensors.torch import load_file, save_file

from radioplat.training.checkpoints import checkpoint
from radioplat.training.checkpoints.checkpoint import (
    RunState,
)

STATE = RunState(
    global_step=3,
    epoch=1,
    samples_consumed=24,
    optimizer_steps=2,
    order_hash="abc",
    order_fields={"seed": "1"},
    quarantined=["a"],
)


def seal(folder, **more) -> None:
    """A manifest that is right about what lies there; ``more`` are further entries."""
    files = [path for path in folder.iterdir() if path.name not in (checkpoint.MANIFEST, "validation.json")]
    sums = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    (folder / checkpoint.MANIFEST).write_text(json.dumps(sums | more))


def change_state(folder, **fields) -> None:
    """A whole checkpoint as a version would write it that has these fields too."""
    path = folder / checkpoint.STATE
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    seal(folder)


def change_header(folder, file, change) -> None:
    """The same with another header of a tensor file; ``change`` gets its metadata."""
    tensors = load_file(folder / file)
    with safe_open(folder / file, "pt") as opened:
        metadata = dict(opened.metadata() or {})
    change(metadata)
    save_file(tensors, folder / file, metadata)
    seal(folder)
