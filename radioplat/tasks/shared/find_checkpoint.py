"""The folders of tasks, and the checkpoint that a task works on."""

from __future__ import annotations

from pathlib import Path

from radioplat.errors import EngineError
from radioplat.spec.checks.tasks.training_task import COMMANDS
from radioplat.spec.schema.root import Spec

LATEST = "model_latest"


def task_folder(spec: Spec, task: str) -> Path:
    """``<task>.results_dir`` where the spec gives it, else ``<results_dir>/<task>``."""
    own = getattr(getattr(spec, task), "results_dir", None)  # `train` has none, as in TAO
    return Path(own or Path(spec.results_dir) / task)


def find_checkpoint(spec: Spec, asked: str | None, field: str) -> Path:
    """The checkpoint folder a task works on: the one asked for, else the latest that ``distill`` or ``train`` left.

    Args:
        asked: value of the spec's ``field``, or None.

    Raises:
        EngineError: it does not exist; says which task to run first.
    """
    if asked:
        if not Path(asked).exists():
            raise EngineError(f"there is no checkpoint {asked}", where=field, hint="Give a model_epoch_... folder.")
        return Path(asked)
    links = [task_folder(spec, task) / LATEST for task in COMMANDS]
    found = [link for link in links if link.exists()]
    if not found:
        raise EngineError(
            f"no trained student: neither {links[0]} nor {links[1]} exists",
            where=field,
            hint=f"Run `radioplat distill` (or `radioplat train`) first, or give {field}.",
        )
    return max(found, key=lambda link: link.resolve().stat().st_mtime)
