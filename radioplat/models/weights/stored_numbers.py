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
_FLOAT = 1e6  # magnitude of ratios, rates and scales


def require_plausible(text: str, file: Path, where: str) -> None:
    """Check every number in an architecture's JSON.

    Args:
        text: the metadata's value; text that is not JSON is ignored here, because its reader rejects it.
        file: for the message.
        where: the spec field of the checkpoint, for the message.

    Raises:
        WeightsError: a number lies outside the limits of its field or is not finite, or the text is nested too deeply.
    """
    try:
        numbers = list(_numbers(json.loads(text), "", ""))
    except ValueError:
        return
    except RecursionError:
        message = f"{file} describes an impossible model: its JSON is nested too deeply"
        raise WeightsError(message, where=where) from None
    for path, name, value in numbers:
        most: float = _FLOAT if isinstance(value, float) else _COUNTS.get(name, _OTHER)
        least = 0 if name in _COUNTS else -most
        if not least <= value <= most:
            message = f"{file} describes an impossible model: {path} is {value}, not between {least} and {most}"
            raise WeightsError(message, where=where)


def _numbers(value: Any, path: str, name: str) -> Iterator[tuple[str, str, float]]:
    """Yield path, field name and value of each number inside JSON ``value``."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _numbers(inner, f"{path}.{key}" if path else key, key)
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from _numbers(inner, f"{path}[{i}]", name)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield path, name, value
