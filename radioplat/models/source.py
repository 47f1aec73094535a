"""The files that a model was made of, by their SHA-256, as they are recorded with the model: the link of its lineage.

A folder has them in ``source.json``; safetensors and ONNX files have them in their metadata, without paths.
"""

from __future__ import annotations

import argparse
import json
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import safetensors
import torch

from radioplat.common.hashing import file_hash
from radioplat.models.vision_model import weight_files
from radioplat.models.weights.model_format import EMA_FILE

SOURCES = "source.json"
KEY = "radioplat.source"  # in the metadata of a file
WEIGHTS = (".safetensors", ".bin", ".pth", ".pt")
SCHEMA = 1


@dataclass(frozen=True)
class Source:
    """Weights, or a graph, that a model was made of.

    Attributes:
        name: of the folder or file.
        files: SHA-256 (hex) by the names of its files.
        path: where it was; empty in metadata, which may be published.
    """

    name: str
    files: dict[str, str]
    path: str = ""


def source_files(path: str | Path, ema: bool | None = None) -> list[Path]:
    """Return the files that a reader of the weights at ``path`` opens.

    Args:
        path: a checkpoint folder, a folder of another library, or a file: then also ``<file>.data``, if it is there.
        ema: whether averaged weights are read; None: if there are any.
    """
    path = Path(path)
    if path.is_file():
        return [file for file in (path, path.with_name(f"{path.name}.data")) if file.is_file()]
    if own := weight_files(path):
        return own + [file for file in [path / EMA_FILE] if ema is not False and file.is_file()]
    return sorted(
        file for file in path.rglob("*") if file.is_file() and (file.suffix in WEIGHTS or file.name == "config.json")
    )


def source_of(path: str | Path, ema: bool | None = None) -> Source:
    """Return the source at ``path``; arguments as of :func:`source_files`.

    Raises:
        OSError: a file cannot be read.
    """
    path = Path(path).resolve()
    home = path.parent if path.is_file() else path
    files = {file.relative_to(home).as_posix(): file_hash(file) for file in source_files(path, ema)}
    return Source(path.name, files, str(path))


def metadata_of(sources: Sequence[Source]) -> dict[str, str]:
    """Return the metadata of a file that was made of ``sources``; none for none."""
    texts = [{"name": source.name, "files": source.files} for source in sources]
    return {KEY: json.dumps(texts)} if texts else {}


def sources_in(metadata: Mapping[str, str]) -> list[Source]:
    """Return the sources that a file's metadata names; none if it was written by a version that did not record them."""
    try:
        return _parsed(json.loads(metadata.get(KEY, "[]")))
    except ValueError:
        return []


def sources_of_weights(path: Path) -> list[Source]:
    """Return the sources that weights of ``export.format`` name; none if there is no record.

    Args:
        path: a safetensors file, a ``.pth`` file, or a folder.
    """
    if path.is_dir():
        file = path / "model.safetensors"
        return read_sources(path) or (sources_of_weights(file) if file.is_file() else [])
    try:
        if path.suffix == ".safetensors":
            with safetensors.safe_open(path, "pt") as opened:
                return sources_in(opened.metadata() or {})
        with torch.serialization.safe_globals([argparse.Namespace]):
            content = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
        return sources_in({KEY: content[KEY]} if isinstance(content, dict) and KEY in content else {})
    except (OSError, RuntimeError, pickle.UnpicklingError, safetensors.SafetensorError):
        return []


def sources_text(sources: Sequence[Source]) -> str:
    """Return the content of ``source.json``."""
    return json.dumps({"schema": SCHEMA, "sources": [asdict(source) for source in sources]}, indent=1)


def read_sources(folder: Path) -> list[Source]:
    """Return the sources of the model in a folder; none if there is no record, or none that can be read."""
    try:
        return _parsed(json.loads((folder / SOURCES).read_bytes())["sources"])
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _parsed(entries: Any) -> list[Source]:
    try:
        return [Source(str(entry["name"]), dict(entry["files"]), str(entry.get("path", ""))) for entry in entries]
    except (ValueError, KeyError, TypeError, AttributeError):
        return []
