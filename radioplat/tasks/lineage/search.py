"""Find artifacts in a results folder by the hashes of their files: paths change, hashes do not."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path

from radioplat.common.hashing import file_hash
from radioplat.models.detectors.checkpoint import DETECTOR
from radioplat.models.source import WEIGHTS, Source, source_files
from radioplat.models.student.checkpoint import STUDENT
from radioplat.models.vision_model import weight_files
from radioplat.models.weights.manifest import MANIFEST, sums_in
from radioplat.tasks.compress.compress import RECORD as CHAIN
from radioplat.tracking.results import EXPERIMENT

_STUDENTS = (*STUDENT.file_names[:1], *DETECTOR.file_names[:1])
_SKIPPED = ("data", "ledger", "logs", "index", "wandb")  # folders of a run, without artifacts
_DEEPEST, _MOST = 8, 50_000  # levels, and folders that are looked into
_LEVELS = 6  # above an artifact, up to its results folder


class Survey:
    """The artifacts below a folder; nothing is opened.

    Attributes:
        students: checkpoint folders, and those of smaller students.
        onnx, engines, weights: files.
        runs: folders with a ledger.
    """

    def __init__(self, root: Path) -> None:
        self.students: list[Path] = []
        self.onnx: list[Path] = []
        self.engines: list[Path] = []
        self.weights: list[Path] = []
        self.runs: list[Path] = []
        depth = len(root.parts)
        for count, (place, folders, files) in enumerate(os.walk(root)):
            here = Path(place)
            if count >= _MOST or len(here.parts) - depth >= _DEEPEST:
                folders.clear()
            if "ledger" in folders:
                self.runs.append(here)
            folders[:] = sorted(name for name in folders if name[0] != "." and name not in _SKIPPED)
            if weight_files(here):
                self.students.append(here)
                continue
            for name in sorted(files):
                kind = {".onnx": self.onnx, ".engine": self.engines}.get(Path(name).suffix)
                kind = self.weights if Path(name).suffix in WEIGHTS else kind
                if kind is not None and name[0] != ".":
                    kind.append(here / name)

    def like(self, source: Source) -> list[Path]:
        """Return the artifacts of the kind of a source, those with its name first."""
        main = main_file(source)
        if main.endswith(".onnx"):
            kinds = self.onnx
        elif source.name == main:
            kinds = self.weights
        else:
            kinds = self.students if main in _STUDENTS else [path.parent for path in self.weights]
        return sorted(kinds, key=lambda path: path.name != source.name)


def results_root(path: Path) -> Path:
    """Return the highest folder above an artifact that is, or directly contains, a task's folder.

    The search ends at the first folder that does neither, once one was found: what lies above is not this run's.
    """
    start = path if path.is_dir() else path.parent
    levels = itertools.dropwhile(lambda above: not _has_tasks(above), [start, *start.parents][:_LEVELS])
    return max(itertools.takewhile(_has_tasks, levels), key=lambda above: -len(above.parts), default=start)


def _has_tasks(folder: Path) -> bool:
    try:
        return (folder / EXPERIMENT).is_file() or any((each / EXPERIMENT).is_file() for each in folder.iterdir())
    except OSError:
        return False


def stage_of(path: Path) -> str:
    """Return the stage of a compression chain that wrote an artifact; empty if none did."""
    for above in list(path.parents)[:_LEVELS]:
        try:
            stages = json.loads((above / CHAIN).read_bytes())["stages"]
            name = path.relative_to(above).parts[0]
            return name if any(entry["name"] == name for entry in stages) else ""
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return ""


def main_file(source: Source) -> str:
    """Return the name of the file that identifies a source; empty if it has none."""
    return next(iter(source.files), "")


def matches(path: Path, source: Source) -> bool:
    """Return whether the artifact at ``path`` was, when it was written, what a source names."""
    main = main_file(source)
    if path.is_file():
        return source.files.get(main, "") in graph_hashes(path)
    return bool(main) and written_hashes(path).get(main) == source.files[main]


def locate(source: Source, hints: Iterable[Path], survey: Survey) -> Path | None:
    """Return the artifact with the hashes of a source: at a hinted path, else anywhere in the survey."""
    places = dict.fromkeys([*(hint.resolve() for hint in hints), *survey.like(source)])
    return next((path for path in places if path.exists() and matches(path, source)), None)


def written_hashes(folder: Path) -> Mapping[str, str]:
    """Return SHA-256 by name of a model's files: of ``manifest.json``, which is written with them; else of now."""
    recorded = manifest_of(folder)
    names = {file.relative_to(folder).as_posix(): file for file in source_files(folder)}
    return {name: recorded.get(name) or file_hash(file) for name, file in names.items()} | recorded


def manifest_of(folder: Path) -> dict[str, str]:
    """Return what ``manifest.json`` lists; empty if there is none that can be read."""
    try:
        content = json.loads((folder / MANIFEST).read_bytes())
    except (OSError, ValueError):
        return {}
    return sums_in(content) if isinstance(content, dict) else {}


def graph_hashes(path: Path) -> tuple[str, ...]:
    """Return the hash of a file and, where an ONNX file has its weights beside it, that of both in a row."""
    data = path.with_name(f"{path.name}.data")
    if path.suffix != ".onnx" or not data.is_file():
        return (file_hash(path),)
    state, other = path.stat(), data.stat()
    return file_hash(path), _both(path, data, state.st_mtime_ns, other.st_mtime_ns)


@lru_cache(maxsize=64)
def _both(path: Path, data: Path, *times: int) -> str:
    digest = hashlib.sha256()
    for file in (path, data):
        with file.open("rb") as opened:
            hashlib.file_digest(opened, lambda: digest)
    return digest.hexdigest()
