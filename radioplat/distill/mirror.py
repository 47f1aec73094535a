"""The second home of checkpoints (``train.checkpoint_dir``), mostly on an object store: it outlives the machine.

An object store renames nothing: a checkpoint there is what has a manifest, which is written last and removed first.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from pathlib import Path, PurePosixPath

from radioplat.data.files import absolute, copy_file, list_files, read_range, remove_file, stat_file, write_file
from radioplat.data.remote import is_remote
from radioplat.distill.checkpoint import MANIFEST, STATE, RunState, clear_left_behind, newest, verified_state
from radioplat.distill.prepare import Run
from radioplat.distill.retention import SCORES, Standing, doomed, read_score
from radioplat.errors import Problem, RadioplatError, WeightsError
from radioplat.spec.root import Spec
from radioplat.spec.train import TrainConfig
from radioplat.terminal import note
from radioplat.track.results import TaskFolder

_FIELD = "train.checkpoint_dir"
_PROBE = "probe.txt"


class Mirror:
    """Checkpoints below ``folder``, local or ``s3://...``, ``gs://...``; every method raises OSError."""

    def __init__(self, folder: str) -> None:
        self.folder = absolute(folder)
        self._steps: dict[str, int] = {}

    def standings(self) -> dict[str, Standing]:
        """Those that have a manifest, by name."""
        files = self._files()
        found = {}
        for name, held in files.items():
            if MANIFEST not in held or (step := self._step(name)) < 0:
                continue
            found[name] = Standing(step, read_score(self._read(name, SCORES)) if SCORES in held else None)
        return found

    def upload(self, checkpoint: Path) -> None:
        """Copy a checkpoint here. Until its manifest stands nothing counts that bears its name."""
        name = checkpoint.name
        remove_file(f"{self.folder}/{name}/{MANIFEST}")
        self._steps.pop(name, None)
        for file in sorted(checkpoint.iterdir(), key=lambda file: (file.name == MANIFEST, file.name)):
            copy_file(str(file), f"{self.folder}/{name}/{file.name}")

    def add(self, file: Path) -> None:
        """Copy one more file of a checkpoint that is here."""
        copy_file(str(file), f"{self.folder}/{file.parent.name}/{file.name}")

    def prune(self, step: int, train: TrainConfig) -> set[str]:
        """Remove what the spec does not keep, once the checkpoint of ``step`` is here; returns the names that stay."""
        found = self.standings()
        gone = doomed(found, step, train)
        for name in sorted(gone):
            self._remove(name)
        return set(found) - gone

    def clear_left_behind(self) -> None:
        """Remove what has no manifest; nobody may be writing here."""
        for name, held in self._files().items():
            if MANIFEST not in held:
                self._remove(name)

    def bring_newer(self, found: tuple[Path, RunState] | None, folder: Path) -> tuple[Path, RunState] | None:
        """The newest whole checkpoint of all: ``found``, or one from here, which is then copied into ``folder``."""
        least = -1 if found is None else found[1].global_step
        there = {name: s.step for name, s in self.standings().items() if s.step > least}
        for name in sorted(there, key=there.__getitem__, reverse=True):
            path = download(f"{self.folder}/{name}", folder / name)
            if path is not None:
                TaskFolder(folder.parent, folder.name).point_latest(name)
                return path, verified_state(path)
        return found

    def probe(self) -> None:
        """Write a file here and remove it."""
        write_file(f"{self.folder}/{_PROBE}", b"radioplat asked whether it may write here\n")
        remove_file(f"{self.folder}/{_PROBE}")

    def _files(self) -> dict[str, set[str]]:
        """The names of the files of every folder that could be a checkpoint."""
        try:
            paths = [PurePosixPath(path) for path, _ in list_files(self.folder, lambda _: True)]
        except FileNotFoundError:
            return {}
        found: dict[str, set[str]] = {}
        for path in paths:
            if len(path.parts) == 2 and path.parts[0].startswith("model_epoch_"):
                found.setdefault(path.parts[0], set()).add(path.name)
        return found

    def _step(self, name: str) -> int:
        """Of the checkpoint ``name``; -1 where that cannot be told."""
        if name not in self._steps:
            with contextlib.suppress(ValueError, KeyError, TypeError, FileNotFoundError):
                self._steps[name] = int(json.loads(self._read(name, STATE))["global_step"])
        return self._steps.get(name, -1)

    def _read(self, name: str, file: str) -> bytes:
        return _whole(f"{self.folder}/{name}/{file}")

    def _remove(self, name: str) -> None:
        remove_file(f"{self.folder}/{name}/{MANIFEST}")
        for file, _ in list_files(f"{self.folder}/{name}", lambda _: True):
            remove_file(f"{self.folder}/{name}/{file}")
        with contextlib.suppress(OSError):  # a store has no folders, or an empty one
            os.rmdir(f"{self.folder}/{name}")
        self._steps.pop(name, None)


def mirror_of(spec: Spec, task: str) -> Mirror | None:
    """``<train.checkpoint_dir>/<task>``; None where the spec names none."""
    folder = spec.train.checkpoint_dir
    return None if folder is None else Mirror(f"{folder.rstrip('/')}/{task}")


def newest_of(run: Run) -> tuple[Path, RunState] | None:
    """The newest whole checkpoint of the run, in its own folder; one that only the mirror has is brought there.

    Raises:
        WeightsError: there is none here, and the mirror cannot be asked.
    """
    found, mirror = newest(run.folder), mirror_of(run.spec, run.task)
    if mirror is None:
        return found
    try:
        return mirror.bring_newer(found, run.folder)
    except OSError as error:
        if found is None:
            raise WeightsError(f"cannot be read: {_reason(error)}", where=_FIELD) from None
        note(f"{_FIELD} cannot be read ({_reason(error)}): the newest here, {found[0].name}, is taken")
        return found


def settle(run: Run) -> None:
    """Before a run starts: clear what an earlier start left half done, see that the mirror can be written, and bring
    it the newest checkpoint if it missed that.

    Raises:
        RadioplatError: it cannot be written.
    """
    clear_left_behind(run.folder)
    mirror = mirror_of(run.spec, run.task)
    if mirror is None:
        return
    try:
        mirror.probe()
        found = newest(run.folder)
        if found is not None:
            there = mirror.standings()
            if found[0].name not in there and all(s.step < found[1].global_step for s in there.values()):
                mirror.upload(found[0])
    except OSError as error:
        raise RadioplatError(f"cannot be used: {_reason(error)}", where=_FIELD, hint=_HINT) from None


def unreachable(spec: Spec, task: str) -> list[Problem]:
    """What ``plan`` finds wrong with the places of checkpoints that are not this run's folder."""
    found = []
    if (mirror := mirror_of(spec, task)) is not None:
        try:
            mirror.probe()
        except OSError as error:
            found.append(Problem(f"cannot be written: {_reason(error)}", _FIELD, _HINT))
    explicit = spec.train.resume_training_checkpoint_path
    if explicit and is_remote(explicit):
        try:
            stat_file(f"{absolute(explicit)}/{MANIFEST}")
        except OSError as error:
            message = f"{explicit} holds no {MANIFEST}: {_reason(error)}"
            found.append(Problem(message, "train.resume_training_checkpoint_path", _HINT))
    return found


_HINT = "Credentials and endpoint come from the environment (AWS_PROFILE, AWS_ENDPOINT_URL, ...)."


def download(source: str, target: Path) -> Path | None:
    """Copy the checkpoint at ``source`` (local or remote) to ``target``, unless it is there already.

    Returns:
        ``target``; None where ``source`` is no whole checkpoint.

    Raises:
        OSError: it cannot be read, or the copy not be written.
    """
    source = absolute(source)
    try:
        manifest = _whole(f"{source}/{MANIFEST}")
    except FileNotFoundError:
        return None
    if (target / MANIFEST).is_file() and (target / MANIFEST).read_bytes() == manifest and verified_state(target):
        return target
    aside = target.with_name(f".{target.name}.partial")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        try:
            for name, _ in list_files(source, lambda _: True):
                copy_file(f"{source}/{name}", str(aside / name))
        except FileNotFoundError:  # removed meanwhile
            return None
        if verified_state(aside) is None:
            return None
        shutil.rmtree(target, ignore_errors=True)  # of that name and not whole, or of another way
        os.rename(aside, target)
        return target
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _whole(path: str) -> bytes:
    return read_range(path, 0, stat_file(path).size)


def _reason(error: OSError) -> str:
    """One line."""
    return error.strerror or str(error)
