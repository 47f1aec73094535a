"""Find the folder of a task, and the checkpoint that a task reads."""

from __future__ import annotations

from pathlib import Path

from radioplat.errors import EngineError
from radioplat.spec.checks.tasks.training_task import COMMANDS
from radioplat.spec.schema.root import Spec

LATEST = "model_latest"


def task_folder(spec: Spec, task: str) -> Path:
    """Return ``<task>.results_dir`` if the spec has it, else ``<results_dir>/<task>``."""
    own = getattr(getattr(spec, task), "results_dir", None)  # `train` has none, as in TAO
    return Path(own or Path(spec.results_dir) / task)


def find_checkpoint(spec: Spec, path: str | None, field: str) -> Path:
    """Return the checkpoint folder ``path``; if it is None, the latest of ``distill`` or ``train``.

    Args:
        path: value of the spec's ``field``.

    Raises:
        EngineError: it does not exist; the hint names the task to run first.
    """
    if path:
        if not Path(path).exists():
            raise EngineError(f"there is no checkpoint {path}", where=field, hint="Give a model_epoch_... folder.")
        return Path(path)
    links = [task_folder(spec, task) / LATEST for task in COMMANDS]
    existing = [link for link in links if link.exists()]
    if not existing:
        raise EngineError(
            f"no trained student: neither {links[0]} nor {links[1]} exists",
            where=field,
            hint=f"Run `radioplat distill` (or `radioplat train`) first, or give {field}.",
        )
    return max(existing, key=lambda link: link.resolve().stat().st_mtime)
