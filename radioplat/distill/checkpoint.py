"""A run on disk: whole fp32 weights and moments by parameter name, so any world size and ZeRO stage can go on.

A folder is written aside, synced, checksummed in ``manifest.json`` and renamed: what bears a checkpoint's name is
whole. The results folder is the only authority on what exists.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from radioplat.models.checkpoint import EMA_FILE, HEADS_FILE, STUDENT_FILE, read_tensors, save_student
from radioplat.models.student import Student

SCHEMA = 1
STATE, MANIFEST, OPTIMIZER = "state.json", "manifest.json", "optimizer.safetensors"
LOSSES = "losses.safetensors"  # of losses that keep statistics; most runs have none
_FILES = {STATE, OPTIMIZER, STUDENT_FILE, HEADS_FILE}


@dataclass
class RunState:
    """Where a run stands.

    Attributes:
        global_step: optimizer steps taken.
        samples_consumed: the whole state of the data.
        order_hash: of the sample order, with the fields it was made from in ``order_fields``.
        order_from: the step at which this order, and the ledger beside the checkpoint, began: not 0 after
            ``train.restart_order`` and after a resume from another run's checkpoint.
        optimizer_steps: updates made; less than ``global_step`` where non-finite steps were skipped.
        recent_losses, rollbacks: of :class:`radioplat.distill.spikes.SpikeGuard`.
        teacher_cost: the fields of a ``TeacherCost`` by teacher, since the first start.
    """

    global_step: int = 0
    epoch: int = 0
    samples_consumed: int = 0
    optimizer_steps: int = 0
    world_size: int = 1
    attempt: int = 1
    order_hash: str = ""
    order_fields: dict[str, str] = field(default_factory=dict)
    order_from: int = 0
    quarantined: list[str] = field(default_factory=list)
    teacher_cost: dict[str, dict[str, float]] = field(default_factory=dict)
    recent_losses: list[float] = field(default_factory=list)
    rollbacks: int = 0
    schema: int = SCHEMA


def write_checkpoint(
    folder: Path,
    name: str,
    student: Student,
    tensors: dict[str, torch.Tensor],
    moments: dict[str, torch.Tensor],
    state: RunState,
    losses: dict[str, torch.Tensor] | None = None,
    average: dict[str, torch.Tensor] | None = None,
) -> Path:
    """Write ``folder/name``; rank 0 only.

    Args:
        tensors: the student's ``state_dict`` with fp32 weights.
        moments: optimizer moments by ``<parameter>.<moment>``.
        losses: statistics of the losses.
        average: the EMA of what in ``tensors`` has one, fp32.
    """
    aside, final = folder / f".{name}.partial", folder / name
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    save_student(student, tensors, aside)
    save_file({k: v.contiguous() for k, v in moments.items()}, aside / OPTIMIZER)
    if losses:
        save_file({k: v.contiguous() for k, v in losses.items()}, aside / LOSSES)
    if average:
        save_file({k: v.contiguous() for k, v in average.items()}, aside / EMA_FILE)
    (aside / STATE).write_text(json.dumps(asdict(state), indent=1))
    sums = {file.name: _sha256(file) for file in sorted(aside.iterdir())}
    (aside / MANIFEST).write_text(json.dumps(sums, indent=1))
    for file in [*aside.iterdir(), aside]:
        _sync(file)
    old = folder / f".{name}.old"
    shutil.rmtree(old, ignore_errors=True)
    if final.exists():
        os.rename(final, old)  # two renames: a crash between them costs this name, not half of its files
    os.rename(aside, final)
    _sync(folder)
    shutil.rmtree(old, ignore_errors=True)
    return final


def verified_state(folder: Path) -> RunState | None:
    """The state of a checkpoint whose files all match its manifest; None for anything else."""
    try:
        sums = json.loads((folder / MANIFEST).read_text())
        if not _FILES <= set(sums) or any(_sha256(folder / name) != digest for name, digest in sums.items()):
            return None
        raw = json.loads((folder / STATE).read_text())
        return RunState(**raw) if raw.get("schema") == SCHEMA else None
    except (OSError, ValueError, TypeError, AttributeError):  # missing, torn, or JSON of another form
        return None


def newest(folder: Path) -> tuple[Path, RunState] | None:
    """The checkpoint in ``folder`` with the most steps whose manifest verifies."""

    def step(path: Path) -> int:
        """Its global step; -1 where that cannot be read."""
        try:
            return int(json.loads((path / STATE).read_text())["global_step"])
        except (OSError, ValueError, KeyError, TypeError):
            return -1

    for path in sorted(folder.glob("model_epoch_*"), key=step, reverse=True):
        state = verified_state(path)
        if state is not None:
            return path, state
    return None


def read_checkpoint(folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Weights and buffers by the student's names, and moments."""
    return read_tensors(folder), load_file(folder / OPTIMIZER)


def read_losses(folder: Path) -> dict[str, torch.Tensor]:
    """Statistics of the losses; {} where the checkpoint has none."""
    return load_file(folder / LOSSES) if (folder / LOSSES).is_file() else {}


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
