"""Engines, ONNX files and exported weights: what each records of itself, and of what it was made of."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from radioplat.errors import RadioplatError
from radioplat.exporting.engines.engine_record import record_path
from radioplat.models.source import Source, source_files, sources_of_weights
from radioplat.tasks.lineage.node import NOT_RECORDED, Kind, Node, checked, measured
from radioplat.tracking.results import EXPERIMENT


@dataclass(frozen=True)
class Link:
    """A source that is to be located.

    Attributes:
        hints: paths where it was; only its hash decides.
        by: the file that records it.
        rest: what the source itself was made of, for where it is lost.
    """

    source: Source
    hints: Sequence[Path] = ()
    by: str = ""
    rest: Sequence[Source] = field(default_factory=tuple)


Read = tuple[Node, list[Link]]


def read_engine(path: Path, verify: bool) -> Read:
    """Read an engine by its record, ``<engine>.json``."""
    record_file = record_path(path)
    try:
        record: dict[str, Any] = json.loads(record_file.read_text(encoding="utf-8"))
        file = checked(path, str(record["engine_sha256"]), record_file.name, verify)
        graph, sha256 = str(record["onnx"]), str(record["onnx_sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        node = Node(f"engine {path}", Kind.engine, path.name, str(path), [measured(path, verify)])
        node.notes.append(f"its record {record_file.name} is missing or damaged, which names the ONNX file")
        return node, []
    titles = [path.name, str(record.get("backend", "")), str(record.get("data_type", ""))]
    node = Node(f"engine {path}", Kind.engine, ", ".join(filter(None, titles)), str(path), [file])
    names = ("backend", "library", "version", "data_type", "versions", "input_shape", "batch")
    node.facts = {name: record[name] for name in names if name in record}
    rest = [Source(str(each["name"]), dict(each["files"])) for each in record.get("onnx_sources", ())]
    hints = [path.with_name(graph), *_named(path, "gen_trt_engine", "onnx_file")]
    return node, [Link(Source(graph, {graph: sha256}), hints, record_file.name, rest)]


def read_onnx(path: Path, verify: bool) -> Read:
    """Read an ONNX file by its metadata.

    Raises:
        RadioplatError: it is none.
    """
    import onnx

    from radioplat.exporting.made_of import recorded_sources

    try:
        model = onnx.load(str(path), load_external_data=False)
    except Exception as error:  # protobuf's class depends on its implementation
        raise RadioplatError(f"this is not an ONNX file: {error}", where=str(path)) from None
    node = Node(
        f"onnx {path}", Kind.onnx, path.name, str(path), [measured(file, verify) for file in source_files(path)]
    )
    node.facts = {"opset": {entry.domain: entry.version for entry in model.opset_import}.get("", 0)}
    sources = recorded_sources(model)
    if not sources:
        node.notes.append(f"the checkpoint that it was exported from is {NOT_RECORDED}")
    hints = [*_named(path, "export", "checkpoint"), *_named(path, "quantize", "model_path")]
    return node, [Link(source, hints, path.name) for source in sources]


def read_weights(path: Path, verify: bool) -> Read:
    """Read weights of ``export.format``, or of another program, by their metadata."""
    files = [measured(file, verify) for file in source_files(path)]
    node = Node(f"weights {path}", Kind.weights, path.name, str(path), files)
    sources = sources_of_weights(path)
    if not sources:
        node.notes.append(f"what they were made of is {NOT_RECORDED}, or they are another program's")
    return node, [Link(source, _named(path, "export", "checkpoint"), path.name) for source in sources]


def _named(path: Path, section: str, name: str) -> list[Path]:
    """Return the path in a field of the spec of the task that wrote a file, if it is known."""
    with contextlib.suppress(OSError, ValueError, yaml.YAMLError, KeyError, TypeError, AttributeError):
        tree = yaml.safe_load((path.parent / EXPERIMENT).read_text(encoding="utf-8"))
        if value := tree[section][name]:
            return [Path(value)]
    return []
