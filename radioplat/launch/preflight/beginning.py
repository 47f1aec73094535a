"""The beginning of a run: whether it has checkpoints, and the spec with all decisions that an earlier start wrote."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import yaml

from radioplat.data.storage.files import absolute, list_files, read_range, stat_file
from radioplat.errors import RadioplatError
from radioplat.spec.loading.load import load_spec
from radioplat.spec.resolved.paths import is_remote
from radioplat.spec.schema.root import Spec
from radioplat.tracking.results import EXPERIMENT
from radioplat.training.checkpoints.mirror import reason_of
from radioplat.training.checkpoints.resume import mirror_of


@dataclass(frozen=True)
class Beginning:
    """The traces of earlier starts of a run.

    Attributes:
        begun: True if there is a checkpoint to resume from.
        spec: the spec that an earlier start wrote next to it; None without a checkpoint, or if none was written.
    """

    begun: bool = False
    spec: Spec | None = None


def beginning(spec: Spec, task: str, folder: Path) -> Beginning:
    """Look at the checkpoint that the spec names, the run's folder and its mirror, in this order.

    Raises:
        RadioplatError: a spec is there but cannot be read.
    """
    places = _places(spec, task, folder)
    written = (_written(f"{place}/{EXPERIMENT}") for place in places)
    return Beginning(bool(places), next((earlier for earlier in written if earlier is not None), None))


def _places(spec: Spec, task: str, folder: Path) -> list[str]:
    """Return the folders with checkpoints of the run, local or remote."""
    resumed, mirror = spec.train.resume_training_checkpoint_path, mirror_of(spec, task)
    places = [os.path.dirname(absolute(resumed).rstrip("/"))] if resumed else []
    if any(folder.glob("model_epoch_*")):
        places.append(str(folder))
    if mirror is not None and _has_uploads(mirror.folder):
        places.append(mirror.folder)
    return places


def _has_uploads(folder: str) -> bool:
    try:
        return any(PurePosixPath(name).parts[0].startswith("model_epoch_") for name, _ in list_files(folder, _any))
    except OSError:
        return False  # the step `checkpoints` reports a mirror that cannot be read


def _any(name: str) -> bool:
    return True


def _written(path: str) -> Spec | None:
    if not is_remote(path):
        return load_spec(path) if os.path.exists(path) else None
    try:
        text = read_range(path, 0, stat_file(path).size)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RadioplatError(f"cannot be read: {reason_of(error)}", where=path) from None
    return load_spec(yaml.safe_load(text))
