"""The file that the judge reads: embeddings of bank and queries, with their labels, as ``.npz``.

Names of its arrays are ``<task>.<bank or queries>.<what>``. What: ``features`` ``[N, D]`` with ``labels`` ``[N]`` for
kNN and linear probe; ``maps`` ``[N, h, w, D]`` with ``labels`` ``[N, h, w]`` for the dense probe, where label -1 is a
position that does not count. Features are floats, labels integers from 0.
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SPLITS = ("bank", "queries")
IGNORED = -1


class UnfitFile(Exception):
    """A file cannot be judged; the message says which, and why."""


@dataclass(frozen=True)
class Task:
    """Embeddings of one corpus.

    Attributes:
        name: of the corpus.
        bank, queries: features ``[N, D]`` or maps ``[N, h, w, D]``, as in the file.
        bank_labels, queries_labels: int64 ``[N]`` or ``[N, h, w]``.
    """

    name: str
    bank: np.ndarray
    bank_labels: np.ndarray
    queries: np.ndarray
    queries_labels: np.ndarray

    @property
    def dense(self) -> bool:
        """Whether its labels belong to positions of maps."""
        return self.bank.ndim == 4

    @property
    def classes(self) -> int:
        """Number of labels, those included that only have a smaller neighbour."""
        return int(self.bank_labels.max()) + 1


def read_tasks(path: Path) -> list[Task]:
    """Read and check a file; tasks by name.

    Raises:
        UnfitFile: it is no such file, or its arrays do not fit each other.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files if name.count(".") == 2}
    except FileNotFoundError:
        raise UnfitFile(f"{path}: there is no such file") from None
    except OSError as error:
        raise UnfitFile(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, EOFError, KeyError, AttributeError, zipfile.BadZipFile):
        raise UnfitFile(f"{path}: this is no .npz file of numbers, or it is damaged") from None
    names = sorted({name.split(".")[0] for name in arrays})
    if not names:
        raise UnfitFile(f"{path}: no array is named <task>.bank.features or <task>.bank.maps; write it with embed.py")
    return [_task(path, name, arrays) for name in names]


def _task(path: Path, name: str, arrays: dict[str, np.ndarray]) -> Task:
    what = "maps" if f"{name}.bank.maps" in arrays else "features"
    found = []
    for split in SPLITS:
        for kind in (what, "labels"):
            if f"{name}.{split}.{kind}" not in arrays:
                raise UnfitFile(f"{path}: {name}.{split}.{kind} is missing")
            found.append(arrays[f"{name}.{split}.{kind}"])
        _check(f"{path}: {name}.{split}", found[-2], found[-1], 4 if what == "maps" else 2)
    task = Task(name, found[0], found[1].astype(np.int64), found[2], found[3].astype(np.int64))
    if task.bank.shape[1:] != task.queries.shape[1:]:
        shapes = f"{task.bank.shape[1:]} and {task.queries.shape[1:]}"
        raise UnfitFile(f"{path}: {name}: an embedding of the bank and one of the queries differ in shape: {shapes}")
    unknown = set(np.unique(task.queries_labels)) - set(np.unique(task.bank_labels)) - {IGNORED}
    if unknown:
        raise UnfitFile(f"{path}: {name}: queries have labels that the bank has not: {sorted(map(int, unknown))[:5]}")
    if len(np.unique(task.bank_labels[task.bank_labels >= 0])) < 2:
        raise UnfitFile(f"{path}: {name}: the bank has fewer than two labels")
    return task


def _check(where: str, embeddings: np.ndarray, labels: np.ndarray, dimensions: int) -> None:
    if embeddings.ndim != dimensions or not np.issubdtype(embeddings.dtype, np.floating):
        expected = "floats [N, h, w, D]" if dimensions == 4 else "floats [N, D]"
        raise UnfitFile(f"{where}: expected {expected}, found {embeddings.dtype} {list(embeddings.shape)}")
    if labels.shape != embeddings.shape[:-1] or not np.issubdtype(labels.dtype, np.integer):
        expected = f"integers {list(embeddings.shape[:-1])}"
        raise UnfitFile(f"{where}.labels: expected {expected}, found {labels.dtype} {list(labels.shape)}")
    if embeddings.size == 0:
        raise UnfitFile(f"{where}: it is empty")
    least = IGNORED if dimensions == 4 else 0
    if int(labels.min()) < least or int(labels.max()) < 0:
        raise UnfitFile(f"{where}.labels: expected labels from 0, found {int(labels.min())} to {int(labels.max())}")
    bad = np.flatnonzero(~np.isfinite(embeddings.reshape(len(embeddings), -1)).all(1))
    if len(bad):
        raise UnfitFile(f"{where}: {len(bad)} of {len(embeddings)} embeddings are not finite, first number {bad[0]}")


def read_alike(paths: Sequence[Path]) -> list[list[Task]]:
    """Read files whose tasks and labels are the same, as a paired comparison needs.

    Raises:
        UnfitFile: one of them cannot be judged, or differs from the first in tasks or labels.
    """
    found = [read_tasks(path) for path in paths]
    for path, tasks in zip(paths[1:], found[1:], strict=True):
        names, first = [task.name for task in tasks], [task.name for task in found[0]]
        if names != first:
            raise UnfitFile(f"{path}: its tasks are {names}, those of {paths[0]} are {first}")
        for task, other in zip(tasks, found[0], strict=True):
            for split in SPLITS:
                own, theirs = (getattr(each, f"{split}_labels") for each in (task, other))
                if not np.array_equal(own, theirs):
                    raise UnfitFile(
                        f"{path}: the labels of {task.name}.{split} are not those of {paths[0]}: {list(own.shape)} and "
                        f"{list(theirs.shape)}. Embed the same corpora; maps also have to have the same grid."
                    )
    return found
