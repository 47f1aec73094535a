"""A run up to one of its checkpoints: attempts, settings, teachers, what it began from, and its images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from radioplat.data.ledger.ledger_rows import LedgerRows
from radioplat.data.ledger.lineage import Part
from radioplat.errors import RadioplatError, SpecError
from radioplat.launch.run_sources import NAME, RESUMED, START_FIELDS, read_run_sources
from radioplat.models.source import Source
from radioplat.spec.checks.tasks.training_task import COMMANDS, is_taught
from radioplat.spec.loading.load import load_spec
from radioplat.spec.schema.root import Spec
from radioplat.tasks.lineage.exported import Link, Read
from radioplat.tasks.lineage.images import RunImages, images_of
from radioplat.tasks.lineage.node import NOT_RECORDED, Kind, Node
from radioplat.tasks.lineage.teachers import files_of, reached, teachers_of
from radioplat.tracking.attempts.attempts import Attempts
from radioplat.tracking.record_versions import read_versions
from radioplat.tracking.results import EXPERIMENT
from radioplat.tracking.status import read_status
from radioplat.training.checkpoints.run_state import RunState


def read_run(folder: Path, state: RunState, verify: bool) -> Read:
    """Read a run by its folder, without its images.

    Args:
        state: of the checkpoint up to which it counts.
    """
    steps = state.global_step
    node = Node(f"run {folder} {steps}", Kind.run, f"{folder}, {steps} steps", str(folder))
    spec = _spec(folder, node)
    task = task_of(folder)
    events = Attempts(folder).read()
    node.facts = {
        "task": task,
        "steps": steps,
        "samples": state.samples_consumed,
        "radioplat": _version(folder),
        "index_sha256": state.order_fields.get("index_rows", ""),
        "order_sha256": state.order_hash,
        "attempts": _attempts(state, {event.attempt: event.world_size for event in events}),
    }
    if spec is not None:
        split = spec.dataset.train_dataset
        node.facts |= {
            "sources": len(split.tar_data_sources) + bool(split.images_dir),
            "optimizer": spec.train.optim.optim.value,
            "batch": spec.global_batch_size,
            "seed": spec.train.seed,
        }
    node.made_from += teachers_of(folder, spec if task not in COMMANDS or is_taught(task) else None, steps, verify)
    return node, _starts(folder, spec, state, node, verify)


def task_of(folder: Path) -> str:
    """Return the task that a run's folder belongs to, ``distill`` or ``train``; empty if it does not say."""
    first = next((str(line.get("message", "")) for line in read_status(folder / "status.json")), "")
    return first.removesuffix(" starts") if first.endswith(" starts") else ""


def _spec(folder: Path, node: Node) -> Spec | None:
    try:
        return load_spec(folder / EXPERIMENT)
    except SpecError as error:
        node.notes.append(f"its spec cannot be read: {error.problems[0]}")
        return None


def _version(folder: Path) -> str:
    try:
        return read_versions(folder).radioplat
    except RadioplatError:
        return ""


def _attempts(state: RunState, workers: dict[int, int]) -> list[dict[str, Any]]:
    """Return the attempts that led to a checkpoint, with their steps counted from 1; none if it does not say."""
    if not state.starts:
        return []
    stops = [*(first for _, first in state.starts[1:]), state.global_step]
    return [
        {"attempt": number, "from_step": first + 1, "to_step": stop, "workers": workers.get(number)}
        for (number, first), stop in zip(state.starts, stops, strict=True)
    ]


def _starts(folder: Path, spec: Spec | None, state: RunState, node: Node, verify: bool) -> list[Link]:
    """Return the weights that a run began from; those of other programs are compared here."""
    recorded = [each for each in read_run_sources(folder) if not each.teacher and reached(each, state.global_step)]
    links = []
    for entry in recorded:
        path = Path(entry.path)
        if entry.hashes:
            links.append(Link(Source(path.name, entry.hashes, entry.path), [path], NAME))
        else:
            reason = entry.problem or "the run was killed before it was computed"
            node.notes.append(f"it began from {entry.path} ({entry.where}), whose hash is not known: {reason}")
            node.files += files_of(entry, verify)
    known = {entry.where for entry in recorded}
    if spec is not None:
        paths = (spec.model.backbone.pretrained_backbone_path, spec.train.pretrained_model_path)
        named = dict(zip(START_FIELDS, paths, strict=True))
        named[RESUMED] = spec.train.resume_training_checkpoint_path if state.order_from else None
        for where, value in named.items():
            if value and where not in known:
                node.notes.append(f"it began from {value} ({where}); the hash is {NOT_RECORDED}")
    if state.order_from and RESUMED not in known:
        node.notes.append(f"its ledger begins at step {state.order_from + 1}; the images before are not in it")
    return links


def parts_in(folder: Path, state: RunState) -> list[Part]:
    """Return the parts of a run's ledger that led to a checkpoint; none if it cannot be read."""
    try:
        return LedgerRows(folder / "ledger").parts(state.order_from, state.reached)
    except (RadioplatError, OSError):
        return []


def images_node(folder: Path, state: RunState, home: Path, verify: bool) -> tuple[Node, RunImages | None]:
    """Return the images of a run up to a checkpoint, and a node for them; None if they cannot be read.

    Args:
        home: a folder for temporary files.
        verify: also read which shards are as they were.
    """
    node = Node(f"images {folder} {state.global_step}", Kind.images, "not known")
    try:
        images = images_of(folder, state, home)
    except (RadioplatError, OSError) as error:
        node.notes.append(f"its images are not known: {error}")
        return node, None
    node.notes += images.problems
    shards = images.shards() if verify else []
    node.title = f"{images.distinct:,} of {len(images.index):,} images of the index, {images.total:,} samples"
    node.facts = {"images": images.distinct, "samples": images.total, "indexed": len(images.index), "shards": shards}
    node.facts["without_effect"] = int(images.without_effect.sum())
    return node, images
