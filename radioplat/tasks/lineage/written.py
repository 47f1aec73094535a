"""The files of ``radioplat lineage --out DIR``: a page, JSON, a table of the images, and hashes for ``sha256sum -c``.

Each is written aside and renamed; ``lineage.json`` comes last, so that a folder with it is complete.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from radioplat import __version__
from radioplat.common.atomic_files import written_aside
from radioplat.errors import RadioplatError
from radioplat.tasks.lineage.image import ImageHistory
from radioplat.tasks.lineage.images import SCHEMA, RunImages
from radioplat.tasks.lineage.node import Kind, Node, State
from radioplat.tracking.report.page import write_page, write_report
from radioplat.tracking.results import write_atomic
from radioplat.tracking.table import Table

PAGE, FACTS, IMAGES, SUMS = "lineage.html", "lineage.json", "images.parquet", "SHA256SUMS"
IMAGE_PAGE, IMAGE_FACTS = "image.html", "image.json"
_MOST = 200  # shards on the page


def write_lineage(folder: Path, node: Node, images: int, runs: Sequence[RunImages]) -> Path:
    """Write the lineage of an artifact; return the page.

    Args:
        images: number of different images.

    Raises:
        RadioplatError: the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / FACTS).unlink(missing_ok=True)
        for name in (PAGE, FACTS, IMAGES, SUMS):
            for left in folder.glob(f".{name}.*"):  # by a command that was killed
                left.unlink(missing_ok=True)
        with written_aside(folder / IMAGES) as aside, pq.ParquetWriter(aside, SCHEMA) as writer:
            for run in runs:
                for table in run.tables():
                    writer.write_table(table)
        write_atomic(folder / SUMS, _sums(node))
        page = _write_page(folder / PAGE, node, images)
        write_atomic(folder / FACTS, json.dumps(_facts(node, images, runs), indent=1))
    except OSError as error:
        raise _unwritable(folder, error) from None
    return page


def write_history(folder: Path, history: ImageHistory) -> Path:
    """Write the history of an image; return the page.

    Raises:
        RadioplatError: the folder cannot be written.
    """
    try:
        content: dict[str, Any] = {"schema": 1, "radioplat": __version__, **asdict(history)}
        for entry in content["artifacts"]:
            entry["kind"] = entry["kind"].value
        page = write_report(
            folder / IMAGE_PAGE,
            title=f"{history.key} of {Path(history.shard).name}",
            tables=history_tables(history),
            notes=[history.shard, *history.notes],
        )
        write_atomic(folder / IMAGE_FACTS, json.dumps(content, indent=1))
    except OSError as error:
        raise _unwritable(folder, error) from None
    return page


def history_tables(history: ImageHistory) -> list[Table]:
    """Return the steps that had an image, and the artifacts by whether it is in them."""
    uses = [
        [use.run, use.id, use.step, use.attempt, use.position, "" if use.kept else "led to no checkpoint", use.reason]
        for use in history.uses
    ]
    words = {True: "yes", False: "no", None: "not known"}
    artifacts = [[each.path, each.kind.value, words[each.contains], each.times] for each in history.artifacts]
    columns = ["run", "id", "step", "attempt", "position", "discarded", "without effect"]
    return [
        Table(columns, uses, "Steps that had it"),
        Table(["artifact", "kind", "taught on it", "times"], artifacts, "Artifacts"),
    ]


def _facts(node: Node, images: int, runs: Sequence[RunImages]) -> dict[str, Any]:
    return {
        "schema": 1,
        "radioplat": __version__,
        "artifact": node.id,
        "images": images,
        "runs": [{"folder": str(run.folder), "images": run.distinct, "samples": run.total} for run in runs],
        "nodes": {each.id: each.to_json() for each in node.walk()},
    }


def _sums(node: Node) -> str:
    """Return the recorded hashes, and those of now where none is recorded, in the form that ``sha256sum -c`` reads."""
    lines = {f"{file.sha256}  {file.path}\n" for each in node.walk() for file in each.files if file.sha256}
    return "".join(sorted(lines, key=lambda line: line[66:]))


def _write_page(path: Path, node: Node, images: int) -> Path:
    nodes = list(node.walk())
    numbers = {each.id: number for number, each in enumerate(nodes, start=1)}
    shards = {shard["path"]: shard for each in nodes for shard in each.facts.get("shards", ())}
    wrong = [
        f"{file.path}: {file.state.value}"
        for each in nodes
        for file in each.files
        if file.state in (State.changed, State.absent, State.unrecorded)
    ]
    wrong += [f"{shard['path']}: {shard['state']}" for shard in shards.values() if shard["state"] != State.same.value]
    return write_page(
        path,
        "radioplat.tasks.lineage",
        "lineage.html.j2",
        title=f"Lineage of {Path(node.path).name}",
        notes=[node.path, f"taught on {images:,} different images" if images else "no images are recorded"],
        tree=_tree(node, numbers),
        nodes=[_shown(each, numbers) for each in nodes],
        wrong=list(dict.fromkeys(wrong)),
        shards=list(shards.values())[:_MOST],
        left_out=max(0, len(shards) - _MOST),
    )


def _tree(node: Node, numbers: dict[str, int], done: set[str] | None = None) -> dict[str, Any]:
    """Return the nodes as nested lists; one that was listed before is named alone."""
    done = set() if done is None else done
    repeated = node.id in done
    done.add(node.id)
    inner = [] if repeated else [_tree(each, numbers, done) for each in node.made_from]
    return {"number": numbers[node.id], "kind": node.kind.value, "title": node.title, "made_from": inner}


def _shown(node: Node, numbers: dict[str, int]) -> dict[str, Any]:
    facts = {name: value for name, value in node.facts.items() if name not in ("shards", "attempts") and value != ""}
    return {
        "number": numbers[node.id],
        "kind": node.kind.value,
        "title": node.title,
        "path": node.path,
        "files": [(file.name, file.sha256, file.state.value, file.by) for file in node.files],
        "facts": [
            (name, json.dumps(value) if isinstance(value, (dict, list)) else value) for name, value in facts.items()
        ],
        "attempts": node.facts.get("attempts", ()) if node.kind is Kind.run else (),
        "notes": node.notes,
    }


def _unwritable(folder: Path, error: OSError) -> RadioplatError:
    return RadioplatError(
        f"cannot be written: {error.strerror or error}", where=str(folder), hint="Name another folder."
    )
