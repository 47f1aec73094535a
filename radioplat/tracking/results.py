"""The results folder of a task, ``<results_dir>/<task>/``: its spec, checkpoints and a link to the latest one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from radioplat.common.atomic_files import aside_of, written_aside
from radioplat.common.redact import redact_yaml
from radioplat.errors import RadioplatError
from radioplat.spec.resolved.paths import results_problems

EXPERIMENT = "experiment.yaml"
_ABSENT = object()


class TaskFolder:
    """Names and atomic writes inside one task's results folder.

    Args:
        results_dir: the experiment's folder.
        task: ``distill``, ``evaluate``, ...; the folder is ``results_dir/task``.
        override: the task's own ``results_dir`` if the spec gives one; it replaces ``results_dir/task``.

    Raises:
        RadioplatError: the folder cannot be created, or is no folder.
    """

    def __init__(
        self, results_dir: str | os.PathLike[str], task: str, override: str | os.PathLike[str] | None = None
    ) -> None:
        self.path = Path(override) if override else Path(results_dir) / task
        field = f"{task}.results_dir" if override else "results_dir"
        check_local(str(override or results_dir), field)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _unusable(self.path, error.strerror, field) from None

    @property
    def experiment_path(self) -> Path:
        """``experiment.yaml``: the whole spec of the run."""
        return self.path / EXPERIMENT

    @property
    def status_path(self) -> Path:
        """``status.json``."""
        return self.path / "status.json"

    @property
    def report_path(self) -> Path:
        """``report.html``."""
        return self.path / "report.html"

    def write_experiment(self, yaml_text: str) -> Path:
        """Save the spec atomically; secrets are masked."""
        return write_atomic(self.experiment_path, redact_yaml(yaml_text))

    def spec_changes(self, new_yaml: str, read: Callable[[Path], str] | None = None) -> list[str]:
        """Compare the saved spec with ``new_yaml``; one line for each changed field, in the order of the fields.

        Args:
            new_yaml: the spec to compare with.
            read: returns the text of the saved spec; one that adds the defaults of fields which the version that saved
                it did not have keeps them out of the answer.

        Returns:
            Lines such as ``train.optim.lr: 0.001 -> 0.002``; empty if nothing is saved or nothing changed.
        """
        if not self.experiment_path.exists():
            return []
        path = self.experiment_path
        old = dict(_leaves(yaml.safe_load(redact_yaml(read(path) if read else path.read_text(encoding="utf-8")))))
        new = dict(_leaves(yaml.safe_load(redact_yaml(new_yaml))))
        return [
            f"{key}: {_shown(old.get(key, _ABSENT))} -> {_shown(new.get(key, _ABSENT))}"
            for key in dict.fromkeys([*new, *old])
            if old.get(key, _ABSENT) != new.get(key, _ABSENT)
        ]

    @staticmethod
    def checkpoint_name(epoch: int, step: int | None = None) -> str:
        """Return ``model_epoch_007``, or ``model_epoch_007_step_00042`` for a checkpoint inside an epoch."""
        name = f"model_epoch_{epoch:03d}"
        return name if step is None else f"{name}_step_{step:05d}"

    def checkpoints(self) -> list[Path]:
        """Return the checkpoints in the folder, in the order of writing, including incomplete ones."""
        folders = (path for path in self.path.glob("model_epoch_[0-9]*") if path.is_dir())
        return sorted(folders, key=lambda path: path.stat().st_mtime_ns)

    def point_latest(self, name: str) -> Path:
        """Make ``model_latest`` a link to checkpoint ``name``; the old link is replaced atomically.

        Raises:
            FileNotFoundError: there is no such checkpoint in the folder.
        """
        if not (self.path / name).exists() or Path(name).name != name:
            raise FileNotFoundError(f"no checkpoint {name} in {self.path}")
        link = self.path / "model_latest"
        aside = aside_of(link)
        aside.symlink_to(name)  # relative, so that the results folder can be moved
        os.replace(aside, link)
        return link

    def latest(self) -> Path | None:
        """Return the checkpoint that ``model_latest`` points to; None if there is no link, or no checkpoint there."""
        link = self.path / "model_latest"
        return link.resolve() if link.exists() else None


def check_local(path: str, field: str) -> None:
    """Refuse an object store as a results folder.

    Raises:
        RadioplatError: ``path``, the value of ``field``, is on one.
    """
    if problems := list(results_problems(path, field)):
        raise RadioplatError(*problems)


def nearest_folder(path: Path, field: str) -> Path:
    """Return ``path``, or the nearest folder above it that exists, in which a task can create ``path``.

    Raises:
        RadioplatError: ``path``, the value of ``field``, cannot be created or written.
    """
    here = next(each for each in (path.absolute(), *path.absolute().parents) if each.exists())
    if not here.is_dir():
        raise _unusable(path, f"{here} is a file", field)
    if not os.access(here, os.W_OK | os.X_OK):
        raise _unusable(path, f"{here} cannot be written", field)
    return here


def _unusable(path: Path, reason: str | None, field: str) -> RadioplatError:
    message = f"cannot create the results folder {path}: {reason}"
    return RadioplatError(message, where=field, hint="Name a folder that can be written.")


def write_atomic(path: str | os.PathLike[str], text: str) -> Path:
    """Write ``text`` (UTF-8) atomically, synced to disk; create the folder."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_aside(path) as aside, aside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    return path


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield field paths and values of a nested tree; an empty section is a leaf."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and any(isinstance(inner, (dict, list)) for inner in value):
        for i, inner in enumerate(value):
            yield from _leaves(inner, f"{path}[{i}]")
    else:
        yield path, value


def _shown(value: Any) -> str:
    if value is _ABSENT:
        return "(absent)"
    return yaml.safe_dump(value, default_flow_style=True, width=10_000).removesuffix("\n").removesuffix("\n...")
