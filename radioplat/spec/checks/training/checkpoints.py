"""Contradictions about checkpoints: which stay, and where."""

from __future__ import annotations

import os
from collections.abc import Iterator

from radioplat.errors import Problem
from radioplat.spec.resolved.paths import storage_problems
from radioplat.spec.schema.root import Spec


def checkpoint_problems(spec: Spec) -> Iterator[Problem]:
    """Problems of ``results_dir``, ``train.keep_*`` and ``checkpoint_dir``."""
    train = spec.train
    if "://" in spec.results_dir:
        hint = "Name a folder, and put checkpoints on the store as well with train.checkpoint_dir."
        yield Problem("status.json and the ledger need a folder, not an object store", "results_dir", hint)
    if train.keep_last is None:
        for name in ("keep_best", "keep_every"):
            if getattr(train, name):
                hint = "Set it, at least to 1."
                yield Problem("every checkpoint stays while train.keep_last is not set", f"train.{name}", hint)
    yield from _places(spec)


def _places(spec: Spec) -> Iterator[Problem]:
    folder, where = spec.train.checkpoint_dir, "train.checkpoint_dir"
    if folder is None:
        return
    if not folder.strip():
        yield Problem("an empty name is no folder", where, "Remove the line to keep checkpoints in results_dir alone.")
    elif "://" in folder:
        yield from storage_problems(folder, where)
    elif os.path.abspath(folder) in (os.path.abspath(spec.results_dir), *_task_folders(spec)):
        yield Problem("it is where checkpoints are already", where, "Name another place, or remove the line.")


def _task_folders(spec: Spec) -> list[str]:
    """Folders that a run's task may have."""
    own = [spec.distill.results_dir] if spec.distill.results_dir else []
    return [os.path.abspath(path) for path in own]
