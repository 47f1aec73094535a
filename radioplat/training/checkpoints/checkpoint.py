"""Write and read checkpoint folders.

A checkpoint contains unpartitioned fp32 weights and optimizer moments by parameter name, so a run can resume from it at
any world size and ZeRO stage.

A folder is written under a temporary name, with checksums in ``manifest.json``, then synced and renamed. A folder with
the name of a checkpoint is therefore complete, unless files were damaged later. Which checkpoints exist is determined
only by the results folder. Only file writes, fsync and rename are used, because NFS offers no more.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from radioplat.common.atomic_files import sync_folder
from radioplat.common.hashing import file_hash
from radioplat.common.unknown_fields import unknown_fields
from radioplat.models.detectors.checkpoint import DETECTOR_FILE
from radioplat.models.student.checkpoint import STUDENT_FILE, read_tensors
from radioplat.models.vision_model import FORMATS, VisionModel, model_files
from radioplat.models.weights.hashed_safetensors import write_tensors
from radioplat.models.weights.manifest import MANIFEST, sums_in
from radioplat.models.weights.model_format import EMA_FILE, VERSION_KEY, written_by
from radioplat.training.checkpoints.run_state import (
    STATE,
    RunState,
    current_state,
    foreign_schema,
    step_in,
    unknown_in_state,
)
from radioplat.training.checkpoints.unreadable import Unreadable, check_in_the_way

OPTIMIZER = "optimizer.safetensors"
LOSSES = "losses.safetensors"  # running statistics of losses; most runs have none
# File with the states of users' step hooks; its metadata key for values that are not tensors.
HOOKS, HOOKS_KEY = "hooks.safetensors", "hooks"
_ASIDE, _OLD, _REMOVED = ".{}.partial", ".{}.old", ".{}.gone"  # names while it is written, replaced, removed
_FILES = {STATE, OPTIMIZER}
_MODELS = [set(form.file_names) for form in FORMATS.values()]  # a checkpoint has all files of one of these sets
_KNOWN = _FILES.union(*_MODELS, {LOSSES, EMA_FILE, HOOKS})
_MODEL_KEYS = {form.key: form.architecture for form in FORMATS.values()}


@dataclass(frozen=True)
class Snapshot:
    """A checkpoint in memory; training no longer changes its tensors.

    Attributes:
        name: name of the checkpoint's folder.
        files: tensors and metadata, by file name.
        state: contents of ``state.json``.
    """

    name: str
    files: dict[str, tuple[dict[str, torch.Tensor], dict[str, str]]]
    state: str


def snapshot(
    name: str,
    student: VisionModel,
    tensors: dict[str, torch.Tensor],
    moments: dict[str, torch.Tensor],
    state: RunState,
    more: Mapping[str, tuple[dict[str, torch.Tensor], dict[str, str]]] | None = None,
) -> Snapshot:
    """Return a snapshot of the given tensors and state; the tensors are not copied.

    Args:
        tensors: the student's ``state_dict``, with fp32 weights.
        moments: optimizer moments by ``<parameter>.<moment>``.
        more: contents of further files, see :func:`radioplat.training.checkpoints.hook_states.files_of`.
    """
    files = {**model_files(student, tensors), OPTIMIZER: (moments, {}), **(more or {})}
    return Snapshot(name, files, json.dumps(asdict(state), indent=1))


def commit(folder: Path, made: Snapshot) -> Path:
    """Write the checkpoint ``folder/<name>`` atomically and return its path; only one process may write to ``folder``.

    Raises:
        OSError: it cannot be written; a checkpoint that existed under this name is unchanged, and partial files are
            removed.
    """
    aside, final, old = (folder / text for text in (_ASIDE.format(made.name), made.name, _OLD.format(made.name)))
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
        sync_folder(aside)
        shutil.rmtree(old, ignore_errors=True)
        if final.exists():
            os.rename(final, old)  # `clear_left_behind` repairs a crash between these two renames
        os.rename(aside, final)
        sync_folder(folder)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)  # free the space in case the disk is full
        if old.exists() and not final.exists():
            os.rename(old, final)
        raise
    shutil.rmtree(old, ignore_errors=True)
    return final


def remove(checkpoint: Path) -> None:
    """Remove a checkpoint; it is renamed first, so that a partly deleted folder never has a checkpoint's name."""
    removed = checkpoint.with_name(_REMOVED.format(checkpoint.name))
    shutil.rmtree(removed, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        os.rename(checkpoint, removed)
    shutil.rmtree(removed, ignore_errors=True)


def clear_left_behind(folder: Path) -> None:
    """Remove partial folders that a killed writer left in ``folder``, and undo an unfinished replacement.

    No process may be writing there.
    """
    for old in folder.glob(_OLD.format("model_epoch_*")):
        final = folder / old.name.removeprefix(".").removesuffix(".old")
        if not final.exists():
            os.rename(old, final)  # killed between the two renames of `commit`
    for pattern in (_ASIDE, _OLD, _REMOVED):
        for path in folder.glob(pattern.format("model_epoch_*")):
            shutil.rmtree(path, ignore_errors=True)


def examine(folder: Path) -> RunState | Unreadable:
    """Return the state of a checkpoint, or why this version cannot read it.

    It is readable if all files match the manifest and this version knows all fields.
    """
    manifest, state = _json(folder / MANIFEST), current_state(_json(folder / STATE))
    step = step_in(state)

    def torn(reason: str) -> Unreadable:
        """Return the result for missing or damaged files."""
        return Unreadable(str(folder), step, reason, torn=True)

    if not isinstance(manifest, dict) or state is None:
        return torn(f"{STATE if isinstance(manifest, dict) else MANIFEST} is missing or damaged")
    sums = sums_in(manifest)
    schema = foreign_schema(state)
    if schema and _matches(folder / STATE, sums.get(STATE)):  # another version may use other files
        return Unreadable(str(folder), step, f"{schema}; {_written_by(folder)}", torn=False)
    if not (_FILES <= set(sums) and any(files <= set(sums) for files in _MODELS)):
        return torn(f"{MANIFEST} does not list all files")
    # A name with a folder in it, or one that is not a regular file, is never opened.
    for name, digest in sums.items():
        if Path(name).name == name and not _matches(folder / name, digest):
            return torn(f"{name} is missing or damaged, by {MANIFEST}")
    faults = [*unknown_in_manifest(manifest), *unknown_in_state(state)]
    faults += [fault for name in sums if name in _KNOWN - {STATE} for fault in _unknown_in_header(folder / name)]
    if faults:
        reason = f"{'; '.join(faults)}; {_written_by(folder)}"
        return Unreadable(str(folder), step, reason, torn=False)
    return RunState(**state)


def unknown_in_manifest(manifest: dict[str, Any]) -> list[str]:
    """Return a message for each entry of a ``manifest.json`` that this version does not know."""
    return [f"{MANIFEST} has the unknown entry {name}" for name in manifest if name not in _KNOWN]


def _unknown_in_header(file: Path) -> list[str]:
    """Return a message for each metadata field of a tensor file that this version does not know."""
    metadata = _metadata(file)
    names = [key for key in metadata if key not in (*_MODEL_KEYS, VERSION_KEY, HOOKS_KEY, "format")]
    for key, kind in _MODEL_KEYS.items():
        if key in metadata:
            with contextlib.suppress(ValueError):  # invalid JSON is reported when the model is built
                names += unknown_fields(json.loads(metadata[key]), kind, f"{key}.")
    return [f"{file.name} has the unknown field {name}" for name in names]


def _metadata(file: Path) -> dict[str, str]:
    try:
        with safe_open(file, "pt") as opened:
            return opened.metadata() or {}
    except (SafetensorError, OSError):
        return {}


def _written_by(folder: Path) -> str:
    return written_by(_metadata(folder / STUDENT_FILE) or _metadata(folder / DETECTOR_FILE))


def _json(file: Path) -> Any:
    """Return the parsed JSON of ``file``; None if it does not exist or is not valid JSON."""
    try:
        return json.loads(file.read_bytes()) if file.is_file() else None
    except (OSError, ValueError, RecursionError):
        return None


def _matches(file: Path, digest: str | None) -> bool:
    try:
        return file.is_file() and file_hash(file) == digest  # only regular files: reading a device or pipe may block
    except OSError:
        return False


def verified_state(folder: Path) -> RunState | None:
    """Return the state of a checkpoint; None if it cannot be read."""
    state = examine(folder)
    return state if isinstance(state, RunState) else None


@dataclass
class Survey:
    """The checkpoints in a task's folder.

    Attributes:
        newest: the checkpoint with the most steps that can be read, and its state.
        unreadable: checkpoints that were examined before it and cannot be read.
    """

    newest: tuple[Path, RunState] | None = None
    unreadable: list[Unreadable] = field(default_factory=list)

    @property
    def step(self) -> int | None:
        """Global step of the newest readable checkpoint; None if there is none."""
        return None if self.newest is None else self.newest[1].global_step


def survey(folder: Path) -> Survey:
    """Examine the checkpoints in ``folder`` in order of decreasing step, until one can be read."""
    steps = {path: step_of(path) for path in folder.glob("model_epoch_*") if path.is_dir()}
    result = Survey()
    # Checkpoints of unknown step come first, because any of them may be the newest.
    for path in sorted(steps, key=lambda path: step if (step := steps[path]) is not None else math.inf, reverse=True):
        state = examine(path)
        if isinstance(state, RunState):
            result.newest = path, state
            break
        result.unreadable.append(state)
    return result


def begun_at(folders: Iterable[Path]) -> int:
    """Return the step at which the workers of several students would go on now: that of the one furthest behind."""
    last = [newest(folder) for folder in folders]
    return min(0 if each is None else each[1].global_step for each in last)


def newest(folder: Path) -> tuple[Path, RunState] | None:
    """Return the readable checkpoint in ``folder`` with the most steps, and its state; None if there is no checkpoint.

    Raises:
        UnreadableCheckpoints: there are checkpoints, but none can be read, or a newer one is of another version.
    """
    result = survey(folder)
    check_in_the_way(result.step, result.unreadable, str(folder))
    return result.newest


def step_of(path: Path) -> int | None:
    """Return a checkpoint's global step, even if files are damaged; None if ``state.json`` cannot be read."""
    return step_in(current_state(_json(path / STATE)))


def read_checkpoint(folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Return weights and buffers by the student's names, and optimizer moments by ``<parameter>.<moment>``."""
    detector = folder / DETECTOR_FILE
    return load_file(detector) if detector.is_file() else read_tensors(folder), load_file(folder / OPTIMIZER)


def read_losses(folder: Path) -> dict[str, torch.Tensor]:
    """Return the running statistics of the losses; {} if the checkpoint has none."""
    return load_file(folder / LOSSES) if (folder / LOSSES).is_file() else {}


@contextlib.contextmanager
def _synced(path: Path) -> Iterator[BinaryIO]:
    """Open a new file for writing; flush and fsync it at the end of the block."""
    with open(path, "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
