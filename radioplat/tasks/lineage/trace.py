"""Follow the records from an artifact to the runs, teachers and images that it comes from."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from radioplat.data.ledger.lineage import Part
from radioplat.errors import RadioplatError
from radioplat.models.source import WEIGHTS, Source
from radioplat.models.vision_model import model_kind, weight_files
from radioplat.tasks.lineage.exported import Link, Read, read_engine, read_onnx, read_weights
from radioplat.tasks.lineage.images import RunImages
from radioplat.tasks.lineage.node import FileRecord, Kind, Node, State, all_checked
from radioplat.tasks.lineage.run import images_node, parts_in, read_run
from radioplat.tasks.lineage.search import Survey, graph_hashes, locate, results_root, stage_of
from radioplat.tasks.lineage.student import read_student, run_of, state_of
from radioplat.tasks.shared.run_folder import run_folder

_HINT = "Give an engine, an ONNX file, weights, a checkpoint folder, or a results folder."


class ReachedSteps(NamedTuple):
    """The steps of a run that led to a checkpoint; of each part attempt, first step, last step plus 1."""

    folder: Path
    parts: list[Part]


class Tracer:
    """Builds the nodes of a lineage, each once; nothing that it reads is changed.

    Args:
        verify: compare files with their hashes; False: follow the records alone.
        with_images: read the ledgers of runs.

    Attributes:
        reached: the steps that led to the checkpoint, of each run by the id of its node.
        images: the images of these steps.
    """

    def __init__(self, verify: bool = True, with_images: bool = True) -> None:
        self._verify, self._with_images = verify, with_images
        self._nodes: dict[str, Node] = {}
        self._surveys: dict[Path, Survey] = {}
        self.reached: dict[str, ReachedSteps] = {}
        self.images: dict[str, RunImages] = {}

    def trace(self, path: Path) -> Node:
        """Return the lineage of the artifact at ``path``.

        Raises:
            RadioplatError: there is no artifact of a known kind.
        """
        path = path.resolve()
        if path.is_dir() and not weight_files(path) and not (path / "config.json").is_file():
            return self._results(path)
        return self._artifact(path)

    def survey(self, path: Path) -> Survey:
        """Return the artifacts of the results folder that ``path`` is in."""
        root = results_root(path)
        if root not in self._surveys:
            self._surveys[root] = Survey(root)
        return self._surveys[root]

    def _results(self, path: Path) -> Node:
        """Return a node for a results folder: what nothing else in it was made of."""
        there = Survey(path)
        newest = [path for path in there.students if _is_newest(path, there.students)]
        artifacts = [*there.engines, *there.onnx, *there.weights, *newest]
        if not artifacts:
            hint = f"Has its run saved a checkpoint? {_HINT}"
            raise RadioplatError("there is no artifact here", where=str(path), hint=hint)
        nodes = [self._artifact(each.resolve()) for each in artifacts]
        used = {node.id for top in nodes for node in list(top.walk())[1:]}
        node = Node(f"results {path}", Kind.results, str(path), str(path))
        node.made_from = [each for each in nodes if each.id not in used]
        return node

    def _artifact(self, path: Path) -> Node:
        if path.is_dir() and weight_files(path):
            return self._known(f"student {path}", path, read_student)
        if path.is_dir() and (path / "config.json").is_file():
            return self._known(f"weights {path}", path, read_weights)
        if path.suffix == ".engine" and path.is_file():
            return self._known(f"engine {path}", path, read_engine)
        if path.suffix == ".onnx" and path.is_file():
            return self._known(f"onnx {path}", path, read_onnx)
        if path.suffix in WEIGHTS and path.is_file():
            return self._known(f"weights {path}", path, read_weights)
        raise RadioplatError("this is no artifact of radioplat", where=str(path), hint=_HINT)

    def _known(self, key: str, path: Path, read: Callable[[Path, bool], Read]) -> Node:
        if key in self._nodes:
            return self._nodes[key]
        node, links = read(path, self._verify)
        if stage := stage_of(path):
            node.facts["stage"], node.title = stage, f"{node.title}, stage {stage} of a chain"
        self._nodes[key] = node  # before its sources: records in a circle end here
        node.made_from += [self._follow(link, path) for link in links]
        if node.kind is Kind.student and state_of(path) is not None:
            if (folder := run_of(path)) is None:
                node.notes.append("the folder of its run is not here: it was copied, or moved away from it")
            else:
                node.made_from.append(self._run(folder, path))
        return node

    def _run(self, folder: Path, checkpoint: Path) -> Node:
        state = state_of(checkpoint)
        assert state is not None
        key = f"run {folder} {state.global_step}"
        if key in self._nodes:
            return self._nodes[key]
        node, links = read_run(folder, state, self._verify)
        self._nodes[key] = node
        self.reached[key] = ReachedSteps(folder, parts_in(folder, state))
        node.made_from += [self._follow(link, folder) for link in links]
        for teacher in node.made_from:
            if teacher.kind is Kind.teacher and teacher.path and model_kind(teacher.path):
                hashes = {file.name: file.sha256 for file in teacher.files if file.sha256}
                link = Link(Source(Path(teacher.path).name, hashes), [Path(teacher.path)])
                teacher.made_from = [self._follow(link, folder)] if hashes else []
        if self._with_images:
            with tempfile.TemporaryDirectory(prefix="radioplat-") as home:
                images, rows = images_node(folder, state, Path(home), self._verify)
            node.made_from.append(images)
            if rows is not None:
                self.images[key] = rows
        return node

    def _follow(self, link: Link, path: Path) -> Node:
        """Return the node of a source: what has its hash, or else what is known of it."""
        if there := locate(link.source, link.hints, self.survey(path)):
            node = self._artifact(there)
            node.files = _as_recorded(node.files, link, there, self._verify)
            return node
        return self._lost(link, path)

    def _lost(self, link: Link, path: Path) -> Node:
        source = link.source
        kind = Kind.onnx if source.name.endswith(".onnx") else Kind.student
        kind = kind if source.name.endswith(".onnx") or "student.safetensors" in source.files else Kind.weights
        named = [each for each in self.survey(path).like(source) if each.name == source.name]
        hint = next((each for each in link.hints if each.exists()), named[0] if len(named) == 1 else None)
        node = Node(f"lost {kind.value} {source.name} {source.files}", kind, source.name, source.path)
        if hint is None:
            node.files = [FileRecord(name, sha256, State.absent, link.by) for name, sha256 in source.files.items()]
            node.notes.append("no file with its hash is in the results folder")
        else:
            home = hint.parent if hint.is_file() else hint
            node.files = all_checked(home, source.files, link.by)
            node.notes.append(f"{hint} has its name, and other content")
        node.made_from = [self._follow(Link(each, (), link.by), path) for each in link.rest]
        return node


def _as_recorded(files: Sequence[FileRecord], link: Link, path: Path, verify: bool) -> list[FileRecord]:
    """Return the files of a source with the hashes that the link records, where nothing else records them."""
    home = path.parent if path.is_file() else path
    known = {each.path: each for each in all_checked(home, link.source.files, link.by, verify)}
    if path.is_file() and verify and set(graph_hashes(path)) & set(link.source.files.values()):
        known = {file: FileRecord(file, one.sha256, State.same, link.by) for file, one in known.items()}
    merged = [known.pop(file.path, file) if file.state in (State.measured, State.unread) else file for file in files]
    listed = {file.path for file in merged}
    return merged + [file for path_, file in known.items() if path_ not in listed]


def _is_newest(path: Path, students: Sequence[Path]) -> bool:
    """Return whether a student is the newest checkpoint of its run, or of no run."""
    if run_of(path) is None:
        return True
    others = [other for other in students if other.parent == path.parent and run_of(other)]
    return max(others, key=lambda other: state.global_step if (state := state_of(other)) else -1) == path


def runs_of(node: Node) -> list[Node]:
    """Return the runs that taught an artifact, the last one first; not those of its teachers."""
    return [each for each in node.walk(teachers=False) if each.kind is Kind.run]


def run_of_results(path: Path) -> Path | None:
    """Return the folder of the run that a results folder's ids are of; None if there is none."""
    try:
        return run_folder(path)
    except RadioplatError:
        return None
