"""The mirror (``train.checkpoint_dir``): copies of the checkpoints in another location, usually an object store.

The mirror survives the loss of the machine.

An object store has no rename. Each upload therefore gets a new folder, ``model_epoch_007-<8 hex digits>``. It counts as
a checkpoint if it has a manifest, which is written last and removed first, and every file that the manifest lists.

An object store has no lease either. ``owner.json`` names the most recent writer; a writer that finds another name in it
stops writing and removing. It reads the file before it writes a manifest and again before it removes anything. A new
writer writes its name before it removes unfinished uploads, so the previous writer never relies on files that were
removed.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import uuid
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath

from radioplat.data.storage.files import (
    FileState,
    RangeFile,
    absolute,
    copy_file,
    list_files,
    remove_file,
    write_file,
)
from radioplat.errors import TrainingError
from radioplat.models.weights.manifest import MANIFEST, sums_in
from radioplat.spec.schema.train import TrainConfig
from radioplat.tracking.lease import Holder, named, parse_holder
from radioplat.training.checkpoints.checkpoint import examine, unknown_in_manifest
from radioplat.training.checkpoints.retention import SCORES, Standing, checkpoints_to_remove, read_score
from radioplat.training.checkpoints.run_state import (
    STATE,
    RunState,
    current_state,
    foreign_schema,
    step_in,
    unknown_in_state,
)
from radioplat.training.checkpoints.unreadable import Unreadable

FIELD = "train.checkpoint_dir"
_PROBE, _OWNER = "probe.txt", "owner.json"
_SET_ASIDE = "set_aside.json"  # marks an upload that train.restart set aside: it is kept but ignored
_UPLOAD = re.compile(r"(model_epoch_\w+?)(-[0-9a-f]{8})?")


@dataclass(frozen=True)
class Upload:
    """A folder in the mirror that contains a checkpoint, complete or not.

    Attributes:
        folder: name of the folder.
        checkpoint: name of the checkpoint.
        files: size and modification time of the files in it, by name.
    """

    folder: str
    checkpoint: str
    files: dict[str, FileState]

    @property
    def written(self) -> int:
        """Modification time of its manifest, in ns."""
        return self.files[MANIFEST].mtime_ns


class Mirror:
    """The checkpoints below ``folder`` (local, ``s3://...`` or ``gs://...``); every method may raise OSError."""

    def __init__(self, folder: str) -> None:
        self.folder = absolute(folder)
        self._mine: Holder | None = None
        self._read_once: dict[tuple[str, int], tuple[dict | None, dict | None]] = {}

    def claim(self) -> None:
        """Write ``owner.json`` to become the only writer; the previous writer stops when it reads the file."""
        mine = Holder.myself()
        write_file(f"{self.folder}/{_OWNER}", json.dumps(asdict(mine)).encode())
        self._mine = mine

    def check_owner(self) -> None:
        """Register as the writer if this object has not yet; otherwise check that no other writer has since.

        Raises:
            TrainingError: another writer has registered.
        """
        if self._mine is None:
            self.claim()
        with contextlib.suppress(FileNotFoundError):
            owner = parse_holder(read_whole(f"{self.folder}/{_OWNER}"))
            if owner != self._mine:
                raise TrainingError(
                    f"{self.folder} has another writer by now: {named(owner)}",
                    where=FIELD,
                    hint="Each run needs a place of its own there. This one writes no further checkpoint.",
                )

    def standings(self) -> dict[str, Standing]:
        """Return step and score of the complete checkpoints, by the checkpoint's name."""
        return self._judged(self._finished())

    def _judged(self, uploads: list[Upload]) -> dict[str, Standing]:
        known = {}
        for upload in sorted(uploads, key=lambda upload: upload.written):
            step = step_in(self._texts(upload)[1])
            if step is not None and not self._missing(upload):
                score = read_score(self._read(upload, SCORES)) if SCORES in upload.files else None
                known[upload.checkpoint] = Standing(step, score)
        return known

    def upload(self, checkpoint: Path) -> None:
        """Copy a checkpoint to the mirror; an older upload of the same name is removed after the new one is complete.

        Raises:
            TrainingError: another writer has registered.
        """
        self.check_owner()
        before = [one for one in self._finished() if one.checkpoint == checkpoint.name]
        folder = f"{checkpoint.name}-{uuid.uuid4().hex[:8]}"
        files = sorted(file for file in checkpoint.iterdir() if file.name != MANIFEST)
        try:
            for file in files:
                copy_file(str(file), f"{self.folder}/{folder}/{file.name}")
            self.check_owner()
            there = next((one.files for one in self._uploads() if one.folder == folder), {})
            if missing := [file.name for file in files if file.name not in there]:
                raise OSError(f"{missing[0]} of {folder} is missing from {self.folder}")
            copy_file(str(checkpoint / MANIFEST), f"{self.folder}/{folder}/{MANIFEST}")
        except BaseException:
            with contextlib.suppress(OSError):  # the next start removes it
                self._remove_folder(folder)
            raise
        self.check_owner()
        for one in before:
            self._remove_folder(one.folder)

    def add(self, file: Path) -> None:
        """Copy one more file of a checkpoint to its newest upload; do nothing if the checkpoint has none.

        Raises:
            TrainingError: another writer has registered.
        """
        self.check_owner()
        uploads = [one for one in self._finished() if one.checkpoint == file.parent.name]
        if uploads:
            folder = max(uploads, key=lambda one: one.written).folder
            copy_file(str(file), f"{self.folder}/{folder}/{file.name}")

    def prune(self, step: int, train: TrainConfig) -> set[str]:
        """Remove the checkpoints that the spec does not keep; return the names of those that remain.

        Args:
            step: global step of the newest checkpoint, which must already be in the mirror.
            train: the retention settings.

        Raises:
            TrainingError: another writer has registered.
        """
        uploads = self._finished()
        known = self._judged(uploads)
        removed = checkpoints_to_remove(known, step, train)
        self.check_owner()
        for upload in uploads:
            if upload.checkpoint in removed:
                self._remove_folder(upload.folder)
        return set(known) - removed

    def clear_left_behind(self) -> None:
        """Remove unfinished uploads; the caller must have called :meth:`claim`."""
        for upload in self._uploads():
            if MANIFEST not in upload.files:
                self._remove_folder(upload.folder)

    def newer(self, least: int | None) -> tuple[list[tuple[int | None, str]], list[Unreadable]]:
        """List checkpoints with more steps than ``least`` (None: all), without reading tensors.

        Returns:
            Steps and paths of the candidates, newest first; and the checkpoints that cannot be read.
        """
        candidates, unreadable = [], []
        for upload in sorted(self._finished(), key=lambda upload: upload.written, reverse=True):
            manifest, state = self._texts(upload)
            step, path = step_in(state), f"{self.folder}/{upload.folder}"
            if step is not None and least is not None and step <= least:
                continue
            if state is None or manifest is None or (missing := self._missing(upload)):
                reason = f"{', '.join(missing)} is missing" if state and manifest else f"{STATE} or {MANIFEST} is torn"
                unreadable.append(Unreadable(path, step, reason, torn=True))
            elif foreign := foreign_schema(state) or [*unknown_in_manifest(manifest), *unknown_in_state(state)]:
                reason = foreign if isinstance(foreign, str) else "; ".join(foreign)
                unreadable.append(Unreadable(path, step, reason, torn=False))
            else:
                candidates.append((step, path))
        # Checkpoints of unknown step come first, because any of them may be the newest.
        candidates.sort(key=lambda one: math.inf if one[0] is None else one[0], reverse=True)
        return candidates, unreadable

    def bring_newer(
        self, newest: tuple[Path, RunState] | None, folder: Path
    ) -> tuple[tuple[Path, RunState] | None, list[Unreadable]]:
        """Return the newest readable checkpoint: ``newest``, or one from the mirror, which is copied into ``folder``.

        Returns:
            The checkpoint with its state, and the mirror's checkpoints that may be newer but cannot be read.
        """
        candidates, unreadable = self.newer(None if newest is None else newest[1].global_step)
        for _, path in candidates:
            upload = _UPLOAD.fullmatch(PurePosixPath(path).name)
            assert upload is not None  # `newer` returns only matching paths
            target = folder / upload[1]
            state = download(path, target)
            if isinstance(state, RunState):
                return (target, state), unreadable
            unreadable.append(state)
        return newest, unreadable

    def find(self, name: str) -> str | None:
        """Return the path of the newest finished upload of checkpoint or folder ``name``; None if there is none."""
        fits = [one for one in self._finished() if name in (one.checkpoint, one.folder)]
        return f"{self.folder}/{max(fits, key=lambda one: one.written).folder}" if fits else None

    def set_aside(self, path: str) -> None:
        """Mark the upload at ``path`` so that it is ignored; none of its files is removed."""
        why = {"why": f"train.restart; remove {_SET_ASIDE} and it counts again"}
        write_file(f"{path}/{_SET_ASIDE}", json.dumps(why).encode())

    def probe(self) -> None:
        """Write a test file to the mirror and remove it."""
        write_file(f"{self.folder}/{_PROBE}", b"radioplat asked whether it may write here\n")
        remove_file(f"{self.folder}/{_PROBE}")

    def _uploads(self) -> list[Upload]:
        """Return every folder that is named like an upload and was not set aside."""
        try:
            listed = [(PurePosixPath(path), state) for path, state in list_files(self.folder, lambda _: True)]
        except FileNotFoundError:
            return []
        uploads: dict[str, Upload] = {}
        for path, state in listed:
            if len(path.parts) == 2 and (match := _UPLOAD.fullmatch(path.parts[0])):
                uploads.setdefault(match[0], Upload(match[0], match[1], {})).files[path.name] = state
        return [upload for upload in uploads.values() if _SET_ASIDE not in upload.files]

    def _finished(self) -> list[Upload]:
        return [upload for upload in self._uploads() if MANIFEST in upload.files]

    def _missing(self, upload: Upload) -> list[str]:
        """Return files that are listed in the manifest but missing, because a later writer removed them."""
        manifest = self._texts(upload)[0]
        return [STATE] if manifest is None else sorted(set(sums_in(manifest)) - set(upload.files))

    def _texts(self, upload: Upload) -> tuple[dict | None, dict | None]:
        """Return manifest and state of an upload as parsed JSON; None for a missing or invalid one."""
        key = (upload.folder, upload.written)
        if key not in self._read_once:
            self._read_once[key] = (self._json(upload, MANIFEST), current_state(self._json(upload, STATE)))
        return self._read_once[key]

    def _json(self, upload: Upload, file: str) -> dict | None:
        with contextlib.suppress(ValueError, FileNotFoundError):
            value = json.loads(self._read(upload, file))
            return value if isinstance(value, dict) else None
        return None

    def _read(self, upload: Upload, file: str) -> bytes:
        return read_whole(f"{self.folder}/{upload.folder}/{file}")

    def _remove_folder(self, folder: str) -> None:
        remove_file(f"{self.folder}/{folder}/{MANIFEST}")
        with contextlib.suppress(FileNotFoundError):
            for file, _ in list_files(f"{self.folder}/{folder}", lambda _: True):
                remove_file(f"{self.folder}/{folder}/{file}")
        with contextlib.suppress(OSError):  # object stores have no folders
            os.rmdir(f"{self.folder}/{folder}")


def download(source: str, target: Path) -> RunState | Unreadable:
    """Copy the checkpoint at ``source`` (the folder of an upload, local or remote) to ``target``, unless it is there.

    Returns:
        Its state, or the reason why it cannot be read; ``target`` is then unchanged. A checkpoint of another version at
        ``target`` is not replaced; its reason is returned.

    Raises:
        OSError: ``source`` cannot be read, or the copy cannot be written.
    """
    source = absolute(source)
    aside = target.with_name(f".{target.name}.partial")
    try:
        manifest = read_whole(f"{source}/{MANIFEST}")
        if (target / MANIFEST).is_file() and (target / MANIFEST).read_bytes() == manifest:
            state = examine(target)
            if isinstance(state, RunState):
                return state
        elif target.exists() and isinstance(state := examine(target), Unreadable) and not state.torn:
            return state
        shutil.rmtree(aside, ignore_errors=True)
        for name, _ in list_files(source, lambda _: True):
            copy_file(f"{source}/{name}", str(aside / name))
        state = examine(aside)
        if isinstance(state, Unreadable):
            return replace(state, path=source)
        shutil.rmtree(target, ignore_errors=True)  # of that name, but damaged or from another upload
        os.rename(aside, target)
        return state
    except FileNotFoundError:
        return Unreadable(source, None, f"it holds no {MANIFEST}, or was removed meanwhile", torn=True)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def reason_of(error: OSError) -> str:
    """Return the reason of a failed file or store operation in one line."""
    return error.strerror or str(error)


def read_whole(path: str) -> bytes:
    """Return all bytes of a small file.

    Raises:
        OSError: it is missing or cannot be read.
    """
    file = RangeFile(path)  # opened once, so that size and bytes are of the same version if it is replaced meanwhile
    return file.read(0, file.state.size)
