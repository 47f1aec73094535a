"""Arguments that are read before a task is imported: torch and Ray take seconds, and a mistyped name needs neither."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from radioplat.errors import RadioplatError

if TYPE_CHECKING:
    from radioplat.spec.schema.root import Spec

RUN = "Give the results_dir of a run, or the folder of one task in it."  # the hint for a run's folder


def read_spec(args: argparse.Namespace) -> Spec:
    """Read the spec with its overrides."""
    from radioplat.spec.loading.load import load_spec

    return load_spec(args.spec, args.overrides)


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
