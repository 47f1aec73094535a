"""Files of a run that have a schema number of their own, and how to read it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from radioplat.data.index.shard_index import SCHEMA_KEY, VERSION
from radioplat.data.ledger.chain import NAME as CHAIN
from radioplat.data.ledger.chain import SCHEMA as CHAIN_SCHEMA
from radioplat.tasks.compress.chain_record import SCHEMA as COMPRESS_SCHEMA
from radioplat.tasks.pipeline.record import SCHEMA as PIPELINE_SCHEMA
from radioplat.tracking.json_lines import read_lines
from radioplat.training.checkpoints.run_state import SCHEMA as STATE_SCHEMA
from radioplat.training.checkpoints.run_state import STATE

_UNREADABLE = "not readable by this version"


@dataclass(frozen=True)
class NumberedFile:
    """A kind of file.

    Attributes:
        schema: this version's.
        read: returns the number in the file at a path; None if there is no file, or no number in it.
        older: what is done with a file of an older schema.
    """

    schema: int
    read: Callable[[Path], int | None]
    older: str = _UNREADABLE


def _in_json(path: Path) -> int | None:
    try:
        return _number(json.loads(path.read_bytes()))
    except (OSError, ValueError, RecursionError):
        return None


def _in_lines(path: Path) -> int | None:
    return max((number for line in read_lines(path) if (number := _number(line)) is not None), default=None)


def _number(content: Any) -> int | None:
    number = content.get("schema") if isinstance(content, dict) else None
    return number if type(number) is int else None


def _in_metadata(path: Path) -> int | None:
    try:
        number = (pq.read_schema(path).metadata or {}).get(SCHEMA_KEY, b"").decode(errors="replace")
    except (OSError, pa.ArrowException):
        return None
    return int(number) if number.isdecimal() else None


NUMBERED = {
    STATE: NumberedFile(STATE_SCHEMA, _in_json, "read as it is: a checkpoint is never rewritten"),
    CHAIN: NumberedFile(CHAIN_SCHEMA, _in_lines),
    "shards.parquet": NumberedFile(int(VERSION), _in_metadata, "the next start makes it from the shards again"),
    "compress.json": NumberedFile(COMPRESS_SCHEMA, _in_json),
    "pipeline.json": NumberedFile(PIPELINE_SCHEMA, _in_json),
}
