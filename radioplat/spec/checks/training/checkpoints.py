"""Contradictions about checkpoints: which stay, and where."""

from __future__ import annotations

import os
from collections.abc import Iterator

from radioplat.errors import Problem
from radioplat.spec.checks.training.detection import detects
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
    if train.keep_best and not (spec.dataset.knn_validation or _judges_itself(spec)):
        hint = "Name dataset.val_dataset; without dataset.num_classes set dataset.knn_validation=true too."
        message = "the best have the best mAP of a detector, top-1 of a classifier or of kNN, and nothing measures it"
        yield Problem(message, "train.keep_best", hint)
    yield from _places(spec)


def _judges_itself(spec: Spec) -> bool:
    """Whether validations find the top-1 of the student's own classifier, or a detector's mAP."""
    held_out = spec.dataset.val_dataset
    return (spec.dataset.num_classes > 0 or detects(spec)) and bool(held_out.tar_data_sources or held_out.images_dir)


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
