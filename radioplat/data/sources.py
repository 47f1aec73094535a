"""From a split of the spec to the files that hold it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from radioplat.data.files import FileState
from radioplat.data.headers import IMAGE_EXTENSIONS
from radioplat.errors import DataError, Problem
from radioplat.spec.dataset import SplitConfig


@dataclass(frozen=True)
class ShardFile:
    """One file of a source.

    Attributes:
        name: path below the source's root, with ``/``.
        state: size in bytes and modification time.
    """

    name: str
    state: FileState


@dataclass(frozen=True)
class SourceFiles:
    """One source: ``tar_data_sources[i]``, or ``images_dir``, whose every image is a shard of one row.

    Attributes:
        field: the spec field that names the folder.
        root: absolute path of the folder.
        kind: what each file is.
        scale_factor: unnormalised share in the mixture (1 for ``images_dir``).
        files: sorted by name.
    """

    field: str
    root: str
    kind: Literal["tar", "image"]
    scale_factor: float
    files: list[ShardFile]


def list_shards(split: SplitConfig, path: str) -> list[SourceFiles]:
    """List the files of every source of ``split``; the tar sources in their order, then ``images_dir``.

    Args:
        split: one split of the spec.
        path: its place in the spec, such as ``dataset.train_dataset``.

    Raises:
        DataError: one problem for each folder that is missing or holds nothing, or the split names no data at all.
    """
    wanted: list[tuple[str, str, Literal["tar", "image"], float]] = [
        (f"{path}.tar_data_sources[{i}].root_dir", source.root_dir, "tar", source.scale_factor)
        for i, source in enumerate(split.tar_data_sources)
    ]
    if split.images_dir:
        wanted.append((f"{path}.images_dir", split.images_dir, "image", 1.0))
    if not wanted:
        hint = "Set tar_data_sources to folders of tar shards, or images_dir to a folder of images."
        raise DataError("no data is given", where=path, hint=hint)
    sources, problems = [], []
    for field, folder, kind, scale in wanted:
        try:
            sources.append(_list_source(field, folder, kind, scale))
        except DataError as error:
            problems.extend(error.problems)
    if problems:
        raise DataError(*problems)
    return sources


def _list_source(field: str, folder: str, kind: Literal["tar", "image"], scale: float) -> SourceFiles:
    root = os.path.abspath(os.path.expanduser(folder))
    if not os.path.isdir(root):
        what = "is a file, not a folder" if os.path.exists(root) else "does not exist"
        raise DataError(Problem(f"the folder {root} {what}", field, "Give the folder that holds the data."))
    test = _is_tar if kind == "tar" else _is_image
    try:
        files = sorted(_walk(root, test), key=lambda f: f.name)
    except OSError as error:
        raise DataError(Problem(f"the folder {error.filename} cannot be read: {error.strerror}", field)) from None
    if not files:
        what = "tar shard (**/*.tar)" if kind == "tar" else f"image ({', '.join(sorted(IMAGE_EXTENSIONS))})"
        raise DataError(Problem(f"the folder {root} holds no {what}", field))
    return SourceFiles(field, root, kind, scale, files)


def _is_tar(name: str) -> bool:
    return name.endswith(".tar")


def _is_image(name: str) -> bool:
    return name.rpartition(".")[2].lower() in IMAGE_EXTENSIONS


def _walk(root: str, wanted: Callable[[str], bool]) -> Iterator[ShardFile]:
    """Files below ``root``, links followed, each folder once so that a circle of links ends; no hidden names."""
    seen: set[tuple[int, int]] = set()
    folders = [("", root)]
    while folders:
        prefix, folder = folders.pop()
        found = os.stat(folder)
        if (found.st_dev, found.st_ino) in seen:
            continue
        seen.add((found.st_dev, found.st_ino))
        with os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda e: e.name):
                if entry.name.startswith("."):
                    continue
                if entry.is_dir():
                    folders.append((f"{prefix}{entry.name}/", entry.path))
                elif entry.is_file() and wanted(entry.name):
                    state = entry.stat()
                    yield ShardFile(prefix + entry.name, FileState(state.st_size, state.st_mtime_ns))
