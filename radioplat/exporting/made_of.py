"""The models that an ONNX file was made of, in its metadata."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from radioplat.models.source import KEY, Source, metadata_of, sources_in

if TYPE_CHECKING:
    from onnx import ModelProto


def record_sources(file: Path, sources: Sequence[Source]) -> None:
    """Write ``sources`` into the metadata of an ONNX file that nobody reads yet; its external weights stay as they are.

    Nothing is changed if there are none.
    """
    import onnx

    if not sources:
        return
    model = onnx.load(str(file), load_external_data=False)
    others = [(entry.key, entry.value) for entry in model.metadata_props if entry.key != KEY]
    del model.metadata_props[:]
    for key, value in [*others, *metadata_of(sources).items()]:
        model.metadata_props.add(key=key, value=value)
    file.write_bytes(model.SerializeToString())


def recorded_sources(model: ModelProto) -> list[Source]:
    """Return the sources in a graph's metadata; none if a version that did not record them wrote it."""
    return sources_in({entry.key: entry.value for entry in model.metadata_props})
