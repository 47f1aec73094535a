"""The second home of checkpoints (``train.checkpoint_dir``), mostly on an object store: it outlives the machine.

An object store renames nothing. Each upload has a folder of its own, ``model_epoch_007-<8 digits>``: a checkpoint there
is a folder with a manifest, which is written last and removed first, and with every file that the manifest lists.

Nor has it a lease. ``owner.json`` names the writer that came last; who finds another name in it writes and removes no
more. It is read before each manifest and again before anything is removed: what is cleared by the next writer, which
has put its name there first, is never counted on by the one before.
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
from radioplat.training.checkpoints.run_state import STATE, RunState, foreign_schema, step_in, unknown_in_state
from radioplat.training.checkpoints.unreadable import Unreadable

FIELD = "train.checkpoint_dir"
_PROBE, _OWNER = "probe.txt", "owner.json"
_SET_ASIDE = "set_aside.json"  # in an upload that train.restart has set aside: it stays, and counts for nothing
_UPLOAD = re.compile(r"(model_epoch_\w+?)(-[0-9a-f]{8})?")


@dataclass(frozen=True)
class Upload:
    """A folder below the mirror's.

    Attributes:
        folder: its name.
        checkpoint: name of the checkpoint.
        files: what lies in it.
    """

    folder: str
    checkpoint: str
    files: dict[str, FileState]

    @property
    def written(self) -> int:
        """When its manifest was."""
        return self.files[MANIFEST].mtime_ns


class Mirror:
    """Checkpoints below ``folder``, local or ``s3://...``, ``gs://...``; every method raises OSError."""

    def __init__(self, folder: str) -> None:
        self.folder = absolute(folder)
        self._mine: Holder | None = None
        self._read_once: dict[tuple[str, int], tuple[dict | None, dict | None]] = {}

    def claim(self) -> None:
        """Become the one writer here; who was it before stops when it finds out."""
        mine = Holder.myself()
        write_file(f"{self.folder}/{_OWNER}", json.dumps(asdict(mine)).encode())
        self._mine = mine

    def standings(self) -> dict[str, Standing]:
        """Those that are complete, by the checkpoint's name."""
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
        """Copy a checkpoint here. What stood here before counts until its manifest stands.

        Raises:
            TrainingError: another writer has come.
        """
        self._own()
        before = [one for one in self._finished() if one.checkpoint == checkpoint.name]
        folder = f"{checkpoint.name}-{uuid.uuid4().hex[:8]}"
        files = sorted(file for file in checkpoint.iterdir() if file.name != MANIFEST)
        try:
            for file in files:
                copy_file(str(file), f"{self.folder}/{folder}/{file.name}")
            self._own()
            there = next((one.files for one in self._uploads() if one.folder == folder), {})
            if missing := [file.name for file in files if file.name not in there]:
                raise OSError(f"{missing[0]} of {folder} is missing from {self.folder}")
            copy_file(str(checkpoint / MANIFEST), f"{self.folder}/{folder}/{MANIFEST}")
        except BaseException:
            with contextlib.suppress(OSError):  # the next start clears it
                self._remove_folder(folder)
            raise
        self._own()
        for one in before:
            self._remove_folder(one.folder)

    def add(self, file: Path) -> None:
        """Copy one more file of a checkpoint that is here."""
        uploads = [one for one in self._finished() if one.checkpoint == file.parent.name]
        if uploads:
            folder = max(uploads, key=lambda one: one.written).folder
            copy_file(str(file), f"{self.folder}/{folder}/{file.name}")

    def prune(self, step: int, train: TrainConfig) -> set[str]:
        """Remove what the spec does not keep, once the checkpoint of ``step`` is here; returns the names that stay.

        Raises:
            TrainingError: another writer has come.
        """
        uploads = self._finished()
        known = self._judged(uploads)
        removed = checkpoints_to_remove(known, step, train)
        self._own()
        for upload in uploads:
            if upload.checkpoint in removed:
                self._remove_folder(upload.folder)
        return set(known) - removed

    def clear_left_behind(self) -> None:
        """Remove what was never finished, as the one who claimed this place."""
        for upload in self._uploads():
            if MANIFEST not in upload.files:
                self._remove_folder(upload.folder)

    def newer(self, least: int | None) -> tuple[list[tuple[int | None, str]], list[Unreadable]]:
        """Checkpoints with more steps than ``least`` (None: all), as far as is known without reading a tensor.

        Returns:
            Steps and paths, the newest first; and what cannot be read.
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
        # Those of unknown step come first: none may be missed.
        candidates.sort(key=lambda one: math.inf if one[0] is None else one[0], reverse=True)
        return candidates, unreadable

    def bring_newer(
        self, newest: tuple[Path, RunState] | None, folder: Path
    ) -> tuple[tuple[Path, RunState] | None, list[Unreadable]]:
        """The newest checkpoint of all: ``newest``, or one from here, which is then copied into ``folder``.

        Returns:
            It, and what comes before it here and cannot be read.
        """
        candidates, unreadable = self.newer(None if newest is None else newest[1].global_step)
        for _, path in candidates:
            upload = _UPLOAD.fullmatch(PurePosixPath(path).name)
            assert upload is not None  # as all that `newer` names
            target = folder / upload[1]
            state = download(path, target)
            if isinstance(state, RunState):
                return (target, state), unreadable
            unreadable.append(state)
        return newest, unreadable

    def find(self, name: str) -> str | None:
        """The path of the upload of a checkpoint, or of one folder, that was finished last."""
        fits = [one for one in self._finished() if name in (one.checkpoint, one.folder)]
        return f"{self.folder}/{max(fits, key=lambda one: one.written).folder}" if fits else None

    def set_aside(self, path: str) -> None:
        """Have the upload at ``path`` count for nothing; nothing of it is removed."""
        why = {"why": f"train.restart; remove {_SET_ASIDE} and it counts again"}
        write_file(f"{path}/{_SET_ASIDE}", json.dumps(why).encode())

    def probe(self) -> None:
        """Write a file here and remove it."""
        write_file(f"{self.folder}/{_PROBE}", b"radioplat asked whether it may write here\n")
        remove_file(f"{self.folder}/{_PROBE}")

    def _uploads(self) -> list[Upload]:
        """Every folder that could be one and was not set aside."""
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
        """Files that its manifest lists and that are not there: a writer that came later cleared them."""
        manifest = self._texts(upload)[0]
        return [STATE] if manifest is None else sorted(set(sums_in(manifest)) - set(upload.files))

    def _texts(self, upload: Upload) -> tuple[dict | None, dict | None]:
        """Its manifest and its state, as JSON; None for what is none."""
        key = (upload.folder, upload.written)
        if key not in self._read_once:
            self._read_once[key] = (self._json(upload, MANIFEST), self._json(upload, STATE))
        return self._read_once[key]

    def _json(self, upload: Upload, file: str) -> dict | None:
        with contextlib.suppress(ValueError, FileNotFoundError):
            value = json.loads(self._read(upload, file))
            return value if isinstance(value, dict) else None
        return None

    def _read(self, upload: Upload, file: str) -> bytes:
        return read_whole(f"{self.folder}/{upload.folder}/{file}")

    def _own(self) -> None:
        """Claim this place, if this writer has not; stop where another one has since it did."""
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

    def _remove_folder(self, folder: str) -> None:
        remove_file(f"{self.folder}/{folder}/{MANIFEST}")
        with contextlib.suppress(FileNotFoundError):
            for file, _ in list_files(f"{self.folder}/{folder}", lambda _: True):
                remove_file(f"{self.folder}/{folder}/{file}")
        with contextlib.suppress(OSError):  # a store has no folders, or an empty one
            os.rmdir(f"{self.folder}/{folder}")


def download(source: str, target: Path) -> RunState | Unreadable:
    """Copy the checkpoint at ``source`` (local or remote; an upload's folder) to ``target``, unless it is there.

    Returns:
        Its state; where it cannot be read, why: ``target`` is then as it was. One of another version that stands at
        ``target`` is not replaced either.

    Raises:
        OSError: it cannot be read, or the copy not be written.
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
        shutil.rmtree(target, ignore_errors=True)  # of that name and not whole, or of another way
        os.rename(aside, target)
        return state
    except FileNotFoundError:
        return Unreadable(source, None, f"it holds no {MANIFEST}, or was removed meanwhile", torn=True)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def reason_of(error: OSError) -> str:
    """Return why a file or store failed, in one line."""
    return error.strerror or str(error)


def read_whole(path: str) -> bytes:
    """All bytes of a small file.

    Raises:
        OSError: it is missing or cannot be read.
    """
    file = RangeFile(path)  # opened once: size and bytes are of one version, where it is replaced meanwhile
    return file.read(0, file.state.size)
