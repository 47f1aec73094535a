"""Which paths of a spec are of an object store, and which of no storage that is known."""

from __future__ import annotations

from collections.abc import Iterator

from radioplat.errors import Problem

SCHEMES = ("s3://", "gs://")  # of object stores that :mod:`radioplat.data.storage.object_stores` has clients for


def is_remote(path: str) -> bool:
    """Whether ``path`` names an object of a store rather than a file of this machine."""
    return path.startswith(SCHEMES)


def storage_problems(folder: str, where: str) -> Iterator[Problem]:
    """An address of another kind than those of :data:`SCHEMES`, in field ``where``."""
    if "://" in folder and not is_remote(folder):
        hint = f"Give a folder, {' or '.join(f'{scheme}bucket/folder' for scheme in SCHEMES)}."
        yield Problem(f"{folder} is of no storage that is known here", where, hint)
