"""Tell local paths from paths in object stores; the problems of paths that do not exist."""

from __future__ import annotations

import re
from collections.abc import Iterator

from radioplat.errors import Problem

SCHEMES = ("s3://", "gs://")  # of object stores with a client in :mod:`radioplat.data.storage.object_stores`
_REPOSITORY = re.compile(r"\w[\w.-]*/\w[\w.-]*")  # ORG/NAME
_WEIGHTS = (".safetensors", ".pth", ".pt", ".bin", ".onnx")


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


def no_such_weights(path: object, where: str) -> Problem:
    """Return the problem of a weight file that does not exist; ``where`` is the field that names it."""
    if _REPOSITORY.fullmatch(str(path)) and not str(path).endswith(_WEIGHTS):
        address = f"hf://{path}"
        hint = f"A repository of the Hugging Face hub is written {address}: radioplat weights fetch {address}."
    else:
        hint = "Give a path on this machine, or fetch them: radioplat weights fetch hf://ORG/NAME or timm:NAME."
    return Problem(f"no such file: {path}", where, hint)


def no_such_checkpoint(path: object, where: str) -> Problem:
    """Return the problem of a task's checkpoint that does not exist."""
    hint = "Give a model_epoch_... folder, or pretrained weights of model.backbone.type."
    return Problem(f"there is no checkpoint {path}", where, hint)


def no_such_folder(path: str, where: str) -> Problem:
    """Return the problem of a folder of shards or images that does not exist; ``path`` is absolute."""
    hint = shards_hint(path) or "Name the folder of the data."
    return Problem(f"the folder {path} does not exist", where, hint)


def shards_hint(path: str) -> str:
    """Return advice for a path that names shards one by one or by a pattern, as other programs do; else no text."""
    before, pattern, _ = re.split(r"([{*]|$)", path, maxsplit=1)
    if pattern or path.endswith(".tar"):
        return f"Name the folder of the shards, {before.rpartition('/')[0] or '/'}: all below it are read."
    return ""
