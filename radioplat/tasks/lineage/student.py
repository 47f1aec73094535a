"""Checkpoints of runs and smaller students: their files, and the run or the students that they come from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from radioplat.errors import WeightsError
from radioplat.models.source import SOURCES, read_sources
from radioplat.models.vision_model import open_architecture
from radioplat.models.weights.manifest import MANIFEST
from radioplat.tasks.lineage.exported import Link, Read
from radioplat.tasks.lineage.node import NOT_RECORDED, Kind, Node, all_checked, measured
from radioplat.tasks.lineage.search import manifest_of, written_hashes
from radioplat.tasks.low_rank.low_rank import REPORT as LOW_RANK
from radioplat.tasks.prune.rounds import REPORT as PRUNED
from radioplat.tasks.quantize.report import REPORT as QUANTIZED
from radioplat.tasks.shared.pretrained_student import REPORT as PRETRAINED
from radioplat.tracking.results import EXPERIMENT
from radioplat.training.checkpoints.run_state import STATE, RunState, current_state, foreign_schema, unknown_in_state

_MADE_BY = {PRUNED: "prune", LOW_RANK: "low_rank", QUANTIZED: "quantize", PRETRAINED: "pretrained weights"}
UNLISTED = "unlisted_images"  # the fact that a task used images without a ledger
_UNLISTED = {  # by the field of a report that says so
    "images": "its ranges were measured on them",
    "batchnorm_images": "its BatchNorm statistics were estimated from them",
    "reconstructed": "layers were fitted to them",
}
_FACTS = ("amount", "images", "before", "after", "cosine", "backbone")  # of the reports


def read_student(path: Path, verify: bool) -> Read:
    """Read a folder with a student or detector; of a run's checkpoint the run is not among the links."""
    recorded = manifest_of(path)
    if recorded:
        files = all_checked(path, recorded, MANIFEST, verify)
    else:
        files = [measured(path / name, verify) for name in written_hashes(path)] if verify else []
    node = Node(f"student {path}", Kind.student, path.name, str(path), files)
    try:
        architecture = open_architecture(path)
        node.facts = {"type": architecture.student.type, "img_size": architecture.img_size}
    except WeightsError as error:
        node.notes.append(error.problems[0].message)
    if (state := state_of(path)) is not None:
        node.facts |= {"steps": state.global_step, "epoch": state.epoch}
        return node, []
    report, made_by = _report(path)
    if made_by:
        node.title, node.facts = f"{path.name}, by {made_by}", node.facts | {"made_by": made_by}
        node.facts |= {name: report[name] for name in _FACTS if name in report}
    sources = read_sources(path)
    if not sources:
        before = report.get("checkpoint") or report.get("weights")
        where = f" (its path then: {before})" if before else ""
        node.notes.append(f"the hash of what it was made of is {NOT_RECORDED}{where}")
    if uses := [text for name, text in _UNLISTED.items() if report.get(name)]:
        node.facts[UNLISTED] = True
        node.notes.append(f"images that no ledger lists were used: {', '.join(uses)}")
    return node, [Link(source, [Path(source.path)] if source.path else [], SOURCES) for source in sources]


def state_of(path: Path) -> RunState | None:
    """Return the state of a run's checkpoint; None for another folder, or one that this version cannot read."""
    try:
        state: Any = current_state(json.loads((path / STATE).read_bytes()))
    except (OSError, ValueError):
        return None
    if not isinstance(state, dict) or foreign_schema(state) or unknown_in_state(state):
        return None
    return RunState(**state)


def run_of(path: Path) -> Path | None:
    """Return the folder of the run that wrote a checkpoint; None if the checkpoint is in no such folder."""
    folder = path.parent
    return folder if (folder / EXPERIMENT).is_file() and (path / STATE).is_file() else None


def _report(path: Path) -> tuple[dict[str, Any], str]:
    """Return the report in a smaller student's folder and the task that wrote it; empty if there is none."""
    for name, task in _MADE_BY.items():
        try:
            content = json.loads((path / name).read_bytes())
        except (OSError, ValueError):
            continue
        return (content if isinstance(content, dict) else {}), task
    return {}, ""
