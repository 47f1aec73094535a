"""Limits of the numbers in a checkpoint's metadata: a damaged or crafted file must not make the reader hang."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from radioplat.errors import WeightsError

# Upper limits of counts, by field; those that a spec can set are as in radioplat.spec.schema.
_COUNTS = {
    "num_inner": 100, "spatial_num_inner": 100, "upsample": 16, "depth": 1000, "depths": 1000, "encoder_layers": 1000,
    "decoder_layers": 1000, "num_heads": 10_000, "num_class_tokens": 10_000, "num_registers": 10_000,
    "register_multiple": 10_000, "token_slot": 10_000, "num_feature_levels": 100, "num_queries": 1_000_000,
    "img_size": 100_000, "cpe_max_size": 100_000, "patch_size": 10_000,
}  # fmt: skip
_OTHER = 100_000_000  # widths and classes


def require_plausible(text: str, file: Path, where: str) -> None:
    """Check every integer in an architecture's JSON.

    Args:
        text: the metadata's value; text that is not JSON is ignored here, because its reader rejects it.
        file: for the message.
        where: the spec field of the checkpoint, for the message.

    Raises:
        WeightsError: a number lies outside the limits of its field.
    """
    try:
        raw = json.loads(text)
    except ValueError:
        return
    for path, name, value in _integers(raw, "", ""):
        least, most = (0, _COUNTS[name]) if name in _COUNTS else (-_OTHER, _OTHER)
        if not least <= value <= most:
            message = f"{file} describes an impossible model: {path} is {value}, not between {least} and {most}"
            raise WeightsError(message, where=where)


def _integers(value: Any, path: str, name: str) -> Iterator[tuple[str, str, int]]:
    """Yield path, field name and value of each integer inside JSON ``value``."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _integers(inner, f"{path}.{key}" if path else key, key)
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from _integers(inner, f"{path}[{i}]", name)
    elif isinstance(value, int) and not isinstance(value, bool):
        yield path, name, value
