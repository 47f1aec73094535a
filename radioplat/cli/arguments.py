"""Arguments that are read before a task is imported: torch and Ray take seconds, and a mistyped name needs neither."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from radioplat.errors import RadioplatError

if TYPE_CHECKING:
    from radioplat.spec.schema.root import Spec

AUTO = "auto"  # `plan auto`: the task that the spec describes
RUN = "Give the results_dir of a run, or the folder of one task in it."  # the hint for a run's folder


def read_spec(args: argparse.Namespace) -> Spec:
    """Read the spec with its overrides, and check that the local paths in it exist that the command reads.

    ``plan`` lists every problem at once, which needs the model: there its own checks of the paths serve.

    Raises:
        SpecError: the spec is wrong, or paths are missing.
    """
    from radioplat.spec.checks.missing_paths import require_paths
    from radioplat.spec.loading.load import load_spec

    spec = load_spec(args.spec, args.overrides)
    if args.task != "plan":
        require_paths(spec, args.task)
    return spec


def say_next(args: argparse.Namespace, task: str) -> None:
    """Print the command that usually follows, with the same spec and overrides."""
    from radioplat.common import terminal

    terminal.say(f"next: {shlex.join(['radioplat', task, *(['-e', args.spec] if args.spec else []), *args.overrides])}")


def say_next_of_run(args: argparse.Namespace, spec: Spec) -> None:
    """Print the command that follows a training: the evaluation if there are held-out images."""
    held_out = spec.dataset.val_dataset
    say_next(args, "evaluate" if held_out.tar_data_sources or held_out.images_dir else "export")


def existing(path: str, hint: str) -> str:
    """Return ``path`` if it is here, or is no path (``s3://...``, a pattern).

    Raises:
        RadioplatError: it does not exist here.
    """
    if "://" not in path and not set("{*") & set(path) and not Path(path).exists():
        raise RadioplatError("it does not exist", where=path, hint=hint)
    return path
