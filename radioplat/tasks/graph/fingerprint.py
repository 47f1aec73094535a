"""Fingerprints of nodes: hashes of all that a node's result depends on, by which a finished one is recognized."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from radioplat.common.hashing import file_hash
from radioplat.models.vision_model import weight_files
from radioplat.models.weights.model_format import EMA_FILE
from radioplat.spec.schema.root import Spec

# The place of an index, the treatment of unreadable checkpoints and trackers do not change the result.
_WITHOUT_EFFECT = {"dataset": ("index_dir",), "train": ("restart", "trackers", "tensorboard")}


def fingerprint(*parts: str) -> str:
    """Return a hash of texts, in order."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def depends_on(spec: Spec, sections: Sequence[str]) -> str:
    """Return, as YAML, the fields of ``sections`` that change a result."""
    return OmegaConf.to_yaml(OmegaConf.create(_fields(spec, sections)))


def hashed_fields(spec: Spec, sections: Sequence[str]) -> str:
    """Return, as YAML, the fields of :func:`depends_on` that differ from their defaults.

    Without the defaults, because a field that a later version adds must not start finished nodes again.
    """
    return OmegaConf.to_yaml(OmegaConf.create(_without_defaults(_fields(spec, sections), _fields(Spec(), sections))))


def _fields(spec: Spec, sections: Sequence[str]) -> dict[str, Any]:
    tree: dict[str, Any] = {name: asdict(getattr(spec, name)) for name in sections}
    for name, section in tree.items():
        for field in ("results_dir", *_WITHOUT_EFFECT.get(name, ())):
            section.pop(field, None)
    return tree


def _without_defaults(tree: Any, defaults: Any) -> dict[str, Any]:
    changed: dict[str, Any] = {}
    for name, value in tree.items():
        default = defaults.get(name)
        if value != default:
            both = isinstance(value, dict) and isinstance(default, dict)
            changed[name] = _without_defaults(value, default) if both else value
    return changed


def product_files(path: Path) -> list[Path]:
    """Return the files of a result: the weights of a checkpoint folder, averages included, or the file itself."""
    if path.is_file():
        return [path]
    average = [path / EMA_FILE] if (path / EMA_FILE).is_file() else []
    return [*weight_files(path), *average]


def product_hash(files: Mapping[str, str]) -> str:
    """Return the hash of a result from those of its files, wherever they are."""
    return fingerprint(*(f"{Path(path).name} {sha256}" for path, sha256 in sorted(files.items())))


def hashes_of(path: Path) -> dict[str, str]:
    """Return the sha256 of each file of a result, by its path."""
    return {str(file): file_hash(file) for file in product_files(path)}
