"""Recognise timm's architectures by the names and shapes of their tensors.

Building all models to compare them needs about a minute, so timm_shapes.json holds a digest of each. After an update of
timm, run ``python -m radioplat.models.backbones.timm_shapes`` (a few minutes) to write the file again.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

import timm
import torch

from radioplat.models.on_meta import on_meta

_TABLE = Path(__file__).with_suffix(".json")
_HEADS = ("head.", "fc.", "classifier.", "heads.", "decoder.", "criterion.", "ema.", "teacher.", "loss.")
_MOST = 3  # maximum number of names for one structure


def timm_names(tensors: Mapping[str, torch.Tensor]) -> list[str]:
    """Return up to three timm models whose tensors, the classifier's left out, have exactly these names and shapes."""
    return _table().get(_digest(tensors), [])


@cache
def _table() -> dict[str, list[str]]:
    return json.loads(_TABLE.read_text())["models"]


def _digest(tensors: Mapping[str, torch.Tensor]) -> str:
    shapes = sorted((name, tuple(t.shape)) for name, t in tensors.items() if not name.startswith(_HEADS))
    return hashlib.sha256(repr(shapes).encode()).hexdigest()[:16]


def build(names: Iterable[str]) -> dict[str, list[str]]:
    """Map digests to model names. Models are built on the meta device; those that cannot be are left out."""
    table: dict[str, list[str]] = {}
    for name in names:
        try:
            with on_meta():
                tensors = timm.create_model(name, num_classes=0).state_dict()
        except (RuntimeError, NotImplementedError):  # its constructor reads tensor values
            continue
        alike = table.setdefault(_digest(tensors), [])
        if len(alike) < _MOST:
            alike.append(name)
    return table


if __name__ == "__main__":
    for module in ("names", "fan.fan"):  # they register models with timm
        importlib.import_module(f"radioplat.models.backbones.{module}")
    models = build(timm.list_models())
    _TABLE.write_text(json.dumps({"timm": timm.__version__, "models": models}, indent=0, sort_keys=True) + "\n")
