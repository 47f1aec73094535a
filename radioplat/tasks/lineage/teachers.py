"""The teachers of a run: the files of their weights, with the hashes that were recorded, and their licences."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from radioplat.launch.run_sources import NAME, RunSource, read_run_sources
from radioplat.spec.resolved.teacher import frozen_teachers
from radioplat.spec.schema.root import Spec
from radioplat.tasks.lineage.node import FileRecord, Kind, Node, State, all_checked
from radioplat.tasks.teachers.known import describe


def teachers_of(folder: Path, spec: Spec | None, steps: int, verify: bool) -> Iterator[Node]:
    """Yield the teachers of a run's first ``steps`` steps, one node for each file or folder of weights.

    Args:
        folder: of the run.
        spec: of the run; None if it cannot be read.
    """
    recorded = [each for each in read_run_sources(folder) if each.teacher and reached(each, steps)]
    types = _types(spec)
    for entry in recorded:
        yield _node(folder, entry, types.get(entry.teacher, ""), verify)
    for teacher in frozen_teachers(spec) if spec else ():
        if any(entry.teacher == teacher.name for entry in recorded):
            continue
        for number, one in enumerate(teacher.members):
            node = Node(f"teacher {folder} {teacher.name} {number}", Kind.teacher, teacher.name)
            _describe(node, teacher.name, one.backbone.type or "")
            if one.weights is None:
                node.notes.append("it has no file of weights")
            else:
                node.path = str(Path(one.weights).absolute())
                node.files = [FileRecord(node.path, "", State.unrecorded)]
            yield node


def reached(entry: RunSource, steps: int) -> bool:
    """Return whether what a run read is in its checkpoint of ``steps`` steps."""
    return entry.from_step < steps or entry.from_step == 0


def files_of(entry: RunSource, verify: bool) -> list[FileRecord]:
    """Return the files of weights that a run read, compared with the hashes that it recorded."""
    path = Path(entry.path)
    if not entry.hashes:
        return [FileRecord(entry.path, "", State.unrecorded, NAME)]
    home = path.parent if path.name in entry.files else path
    return all_checked(home, entry.hashes, NAME, verify)


def _node(folder: Path, entry: RunSource, type_: str, verify: bool) -> Node:
    node = Node(f"teacher {folder} {entry.where} {entry.from_step}", Kind.teacher, entry.teacher, entry.path)
    _describe(node, entry.teacher, type_)
    node.files = files_of(entry, verify)
    node.facts |= {"field": entry.where, "from_step": entry.from_step + 1}
    if entry.address:
        node.facts["address"] = entry.address
    if entry.from_step:
        node.title += f", from step {entry.from_step + 1}"
    if entry.problem:
        node.notes.append(f"no hash: {entry.problem}")
    elif entry.is_open:
        node.notes.append("its hash is not computed yet: the run was killed, or has just begun")
    return node


def _describe(node: Node, name: str, type_: str) -> None:
    known = describe(type_) if type_ else None
    licence = known.licence if known else ""
    node.facts = {"name": name, "type": type_, "licence": licence}
    node.title = ", ".join([f"{name}: {type_ or 'a folder'}", f"licence {licence}" if licence else "licence not known"])


def _types(spec: Spec | None) -> dict[str, str]:
    return {teacher.name: teacher.backbone.type or "" for teacher in frozen_teachers(spec)} if spec else {}
