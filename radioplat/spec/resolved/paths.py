"""Tell local paths from paths in object stores."""

from __future__ import annotations

from collections.abc import Iterator

from radioplat.errors import Problem

SCHEMES = ("s3://", "gs://")  # of object stores with a client in :mod:`radioplat.data.storage.object_stores`


def is_remote(path: str) -> bool:
    """Return True if ``path`` is in an object store, False if it is a local file."""
    return path.startswith(SCHEMES)


def results_problems(path: str, field: str) -> Iterator[Problem]:
    """Yield a problem if ``path``, the value of ``field``, is on an object store: results need a folder."""
    if "://" in path:
        hint = "Name a folder; train.checkpoint_dir may be on an object store, and outlives the machine."
        yield Problem("results need a folder, not an object store: records are appended to", field, hint)


def storage_problems(folder: str, where: str) -> Iterator[Problem]:
    """Yield a problem if ``folder``, the value of field ``where``, has a scheme other than :data:`SCHEMES`."""
    if "://" in folder and not is_remote(folder):
        hint = f"Give a folder, {' or '.join(f'{scheme}bucket/folder' for scheme in SCHEMES)}."
        yield Problem(f"{folder} has an unknown URL scheme", where, hint)
