"""Checks of the fields about checkpoints: which are kept, and where."""

from __future__ import annotations

import os
from collections.abc import Iterator

from radioplat.errors import Problem
from radioplat.spec.checks.unused_fields import unused_fields
from radioplat.spec.resolved.paths import results_problems, storage_problems
from radioplat.spec.schema.root import Spec


def checkpoint_problems(spec: Spec) -> Iterator[Problem]:
    """Yield problems of ``results_dir``, ``train.keep_*`` and ``checkpoint_dir``."""
    train = spec.train
    yield from results_problems(spec.results_dir, "results_dir")
    if train.keep_last is None:
        hint, message = "Set train.keep_last to at least 1.", "all checkpoints are kept without train.keep_last"
        yield from unused_fields(train, ("keep_best", "keep_every"), "train", message, hint)
    folder, where = train.checkpoint_dir, "train.checkpoint_dir"
    if folder is None:
        return
    task_folders = [os.path.abspath(path) for path in (spec.results_dir, spec.distill.results_dir) if path]
    if not folder.strip():
        yield Problem("the name is empty", where, "Remove the line to keep checkpoints in results_dir alone.")
    elif "://" in folder:
        yield from storage_problems(folder, where)
    elif os.path.abspath(folder) in task_folders:
        yield Problem("checkpoints are already written there", where, "Name another folder, or remove the line.")
