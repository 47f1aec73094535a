"""A run on disk: whole fp32 weights and moments by parameter name, so any world size and ZeRO stage can go on.

A folder is written aside, checksummed in ``manifest.json``, synced and renamed: what bears a checkpoint's name is
whole. The results folder is the only authority on what exists. Only files, fsync and rename: NFS has no more.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import BinaryIO

import torch
from safetensors.torch import load_file

from radioplat.models.checkpoint import EMA_FILE, HEADS_FILE, STUDENT_FILE, read_tensors, student_files
from radioplat.models.detector import DetectorArchitecture
from radioplat.models.detector_file import DETECTOR_FILE, detector_files
from radioplat.models.detectors import AnyDetector
from radioplat.models.student import Student
from radioplat.models.tensor_file import write_tensors

SCHEMA = 1
STATE, MANIFEST, OPTIMIZER = "state.json", "manifest.json", "optimizer.safetensors"
LOSSES = "losses.safetensors"  # of losses that keep statistics; most runs have none
_FILES = {STATE, OPTIMIZER}
_MODELS = ({STUDENT_FILE, HEADS_FILE}, {DETECTOR_FILE})  # one of them


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


@dataclass(frozen=True)
class Snapshot:
    """A checkpoint in memory, which nothing moves any more.

    Attributes:
        files: tensors and metadata by file name.
        state: the text of ``state.json``.
    """

    name: str
    files: dict[str, tuple[dict[str, torch.Tensor], dict[str, str]]]
    state: str


def snapshot(
    name: str,
    student: Student | AnyDetector,
    tensors: dict[str, torch.Tensor],
    moments: dict[str, torch.Tensor],
    state: RunState,
    losses: dict[str, torch.Tensor] | None = None,
    average: dict[str, torch.Tensor] | None = None,
) -> Snapshot:
    """Put a checkpoint together; the tensors are taken as they are, not copied.

    Args:
        tensors: the student's ``state_dict`` with fp32 weights.
        moments: optimizer moments by ``<parameter>.<moment>``.
        losses: statistics of the losses.
        average: the EMA of what in ``tensors`` has one, fp32.
    """
    form = student.architecture
    of_model = detector_files if isinstance(form, DetectorArchitecture) else student_files
    files = {**of_model(form, tensors), OPTIMIZER: (moments, {})}
    files |= {file: (held, {}) for file, held in ((LOSSES, losses), (EMA_FILE, average)) if held}
    return Snapshot(name, files, json.dumps(asdict(state), indent=1))


def commit(folder: Path, made: Snapshot) -> Path:
    """Write ``folder/<name>``; one process at a time.

    Raises:
        OSError: it cannot be written; what stood there before still stands, and nothing is left beside it.
    """
    aside, final, old = (folder / text for text in (_aside(made.name), made.name, _old(made.name)))
    shutil.rmtree(aside, ignore_errors=True)
    try:
        aside.mkdir(parents=True)
        sums = {}
        for name, (tensors, metadata) in made.files.items():
            with _synced(aside / name) as file:
                sums[name] = write_tensors(file, tensors, metadata)
        with _synced(aside / STATE) as file:
            file.write(made.state.encode())
        sums[STATE] = hashlib.sha256(made.state.encode()).hexdigest()
        with _synced(aside / MANIFEST) as file:
            file.write(json.dumps(sums, indent=1).encode())
        _sync_folder(aside)
        shutil.rmtree(old, ignore_errors=True)
        if final.exists():
            os.rename(final, old)  # a crash between these two is put right by `clear_left_behind`
        os.rename(aside, final)
        _sync_folder(folder)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)  # a full disk needs the room
        if old.exists() and not final.exists():
            os.rename(old, final)
        raise
    shutil.rmtree(old, ignore_errors=True)
    return final


def remove(checkpoint: Path) -> None:
    """Remove a checkpoint: it loses its name before it loses its files."""
    gone = checkpoint.with_name(_gone(checkpoint.name))
    shutil.rmtree(gone, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        os.rename(checkpoint, gone)
    shutil.rmtree(gone, ignore_errors=True)


def clear_left_behind(folder: Path) -> None:
    """Clear what a writer that was killed left in ``folder``; nobody may be writing there."""
    for old in folder.glob(_old("model_epoch_*")):
        final = folder / old.name.removeprefix(".").removesuffix(".old")
        if not final.exists():
            os.rename(old, final)  # killed between two renames
    for pattern in (_aside, _old, _gone):
        for path in folder.glob(pattern("model_epoch_*")):
            shutil.rmtree(path, ignore_errors=True)


def _aside(name: str) -> str:
    return f".{name}.partial"


def _old(name: str) -> str:
    return f".{name}.old"


def _gone(name: str) -> str:
    return f".{name}.gone"


def verified_state(folder: Path) -> RunState | None:
    """The state of a checkpoint whose files all match its manifest; None for anything else."""
    try:
        sums = json.loads(_regular(folder / MANIFEST).read_text())
        whole = _FILES <= set(sums) and any(files <= set(sums) for files in _MODELS)
        if not whole or any(_sha256(folder / name) != digest for name, digest in sums.items()):
            return None
        raw = json.loads((folder / STATE).read_text())
        return RunState(**raw) if raw.get("schema") == SCHEMA else None
    except (OSError, ValueError, TypeError, AttributeError):  # missing, torn, or JSON of another form
        return None


def newest(folder: Path) -> tuple[Path, RunState] | None:
    """The checkpoint in ``folder`` with the most steps whose manifest verifies."""

    for path in sorted(folder.glob("model_epoch_*"), key=step_of, reverse=True):
        state = verified_state(path)
        if state is not None:
            return path, state
    return None


def step_of(path: Path) -> int:
    """A checkpoint's global step, whole or not; -1 where that cannot be read."""
    try:
        return int(json.loads(_regular(path / STATE).read_text())["global_step"])
    except (OSError, ValueError, KeyError, TypeError):
        return -1


def read_checkpoint(folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Weights and buffers by the student's names, and moments."""
    detector = folder / DETECTOR_FILE
    return load_file(detector) if detector.is_file() else read_tensors(folder), load_file(folder / OPTIMIZER)


def read_losses(folder: Path) -> dict[str, torch.Tensor]:
    """Statistics of the losses; {} where the checkpoint has none."""
    return load_file(folder / LOSSES) if (folder / LOSSES).is_file() else {}


def _sha256(path: Path) -> str:
    with open(_regular(path), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _regular(path: Path) -> Path:
    """``path``, if a regular file is there: to read a device or a pipe may never end.

    Raises:
        OSError: there is something else, or nothing.
    """
    if not path.is_file():
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return path


@contextlib.contextmanager
def _synced(path: Path) -> Iterator[BinaryIO]:
    """A new file that is on the disk when the block ends."""
    with open(path, "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    """Put the names in a folder on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems know it for files alone
            raise
    finally:
        os.close(descriptor)
