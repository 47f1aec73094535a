"""The folder of each node, the spec with which its task runs there, and its fingerprint."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from radioplat.spec.schema.root import Spec
from radioplat.tasks.compress.outcome import Outcome
from radioplat.tasks.graph.fingerprint import fingerprint, hashed_fields, product_hash
from radioplat.tasks.pipeline.dag import Pipeline, TaskNode
from radioplat.tasks.pipeline.kinds import TASKS
from radioplat.tasks.pipeline.record import Record


def placed(pipeline: Pipeline, node: TaskNode, spec: Spec, fingerprint: str) -> Spec:
    """Set where a node writes; changes ``spec`` and returns it.

    Args:
        fingerprint: of the node; other settings write another copy of checkpoints under the same name.
    """
    spec.results_dir = str(pipeline.home / node.name)
    for section in [getattr(spec, each.name) for each in dataclasses.fields(spec)] + [spec.quantize.qat]:
        if hasattr(section, "results_dir"):
            section.results_dir = None
    if spec.train.checkpoint_dir:
        home = spec.train.checkpoint_dir.rstrip("/")
        spec.train.checkpoint_dir = f"{home}/{pipeline.home.name}/{node.name}-{fingerprint[:8]}"
    spec.wandb.group = spec.wandb.group or pipeline.home.name
    spec.wandb.name = spec.wandb.name or node.name
    return spec


def fingerprint_of(pipeline: Pipeline, node: TaskNode, record: Record) -> str:
    """Return the hash of all that a node's result depends on; the nodes that it needs are finished.

    It covers the fields of the node's spec, and the fingerprints and results of these nodes.
    """
    before = [record.entries[name] for name in node.reads]
    parents = fingerprint(*(f"{entry.name} {entry.fingerprint} {product_hash(entry.files)}" for entry in before))
    fields = hashed_fields(pipeline.fields(node), TASKS[node.task].depends_on)
    return fingerprint(node.task.value, fields, parents)


def finished_nodes(pipeline: Pipeline, record: Record) -> dict[str, Outcome]:
    """Return the nodes that earlier starts finished and nothing has changed for, with their results."""
    finished: dict[str, Outcome] = {}
    for node in pipeline.graph:
        entry = record.entries.get(node.name)
        if entry is None or entry.outcome is None or any(name not in finished for name in node.needs):
            continue
        path = Path(entry.outcome.path)
        if path.exists() and entry.fingerprint == fingerprint_of(pipeline, node, record):
            finished[node.name] = entry.outcome
    return finished


def begins_anew(pipeline: Pipeline, node: TaskNode, record: Record, finished: Mapping[str, Outcome]) -> bool:
    """Return whether an unfinished node will not go on from what earlier starts trained.

    Args:
        finished: see :func:`finished_nodes`; what needs an unfinished node begins anew, or for the first time.
    """
    if any(name not in finished for name in node.needs):
        return True
    return record.entries[node.name].fingerprint != fingerprint_of(pipeline, node, record)
